// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// node is an image and a node's folders.
type node struct {
	t         *testing.T
	config    Config
	installer *Installer
}

func newNode(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{t: t, config: Config{
		From: filepath.Join(root, "image"), Version: "0.1.0", LibDir: filepath.Join(root, "lib"),
		CNIBinDir: filepath.Join(root, "bin"), CNIConfDir: filepath.Join(root, "net.d"), Log: slog.New(slog.DiscardHandler),
	}}
	for _, folder := range []string{n.config.From, n.config.CNIBinDir, n.config.CNIConfDir} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.image("library one", "plugin one")
	n.installer = New(n.config)
	return n
}

func (n *node) image(library, plugin string) {
	for name, text := range map[string]string{Library: library, Plugin: plugin} {
		var file bytes.Buffer
		writer := gzip.NewWriter(&file)
		if _, err := writer.Write([]byte(text)); err != nil {
			n.t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			n.t.Fatal(err)
		}
		n.write(filepath.Join(n.config.From, name+packed), file.String())
	}
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) install() {
	n.t.Helper()
	if err := n.installer.Install(true); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) folder() string {
	n.t.Helper()
	folder, err := n.installer.Folder()
	if err != nil {
		n.t.Fatal(err)
	}
	return folder
}

func (n *node) want(path, text string, mode os.FileMode) {
	n.t.Helper()
	data, err := os.ReadFile(path)
	info, _ := os.Stat(path)
	if err != nil || string(data) != text || info.Mode().Perm() != mode {
		n.t.Errorf("%s: %q, %v, %v", path, data, info, err)
	}
}

func (n *node) versions() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.config.LibDir)
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	sort.Strings(names)
	return names
}

func TestInstallPutsEverythingInPlace(t *testing.T) {
	n := newNode(t)
	n.config.CNIConf = filepath.Join(n.config.From, "10-ktsn.conflist")
	n.write(n.config.CNIConf, `{"name":"ktsn"}`)
	n.installer = New(n.config)
	n.install()
	n.want(filepath.Join(n.folder(), Library), "library one", 0o755)
	n.want(filepath.Join(n.folder(), Preload), "/usr/lib/ktsn/libktsn.so\n", 0o644)
	n.want(filepath.Join(n.config.CNIBinDir, Plugin), "plugin one", 0o755)
	n.want(filepath.Join(n.config.CNIConfDir, "10-ktsn.conflist"), `{"name":"ktsn"}`, 0o644)
	if !versionName.MatchString(filepath.Base(n.folder())) {
		t.Errorf("%s would never be removed", n.folder())
	}
	before, _ := os.Stat(filepath.Join(n.folder(), Library))
	n.install()
	after, _ := os.Stat(filepath.Join(n.folder(), Library))
	if !os.SameFile(before, after) {
		t.Error("the same library was written again")
	}
	// Somebody's change is put right, in a new file: the old one may be mapped.
	n.write(filepath.Join(n.folder(), Library), "broken")
	broken, _ := os.Stat(filepath.Join(n.folder(), Library))
	n.install()
	n.want(filepath.Join(n.folder(), Library), "library one", 0o755)
	if mended, _ := os.Stat(filepath.Join(n.folder(), Library)); os.SameFile(broken, mended) {
		t.Error("written into a file that may be mapped")
	}
}

// A tsn-cni that is not wanted leaves the node's as it is.
func TestThePluginStaysWhileAnotherKtsndServes(t *testing.T) {
	n := newNode(t)
	n.install()
	n.image("library two", "plugin two")
	n.installer = New(n.config)
	if err := n.installer.Install(false); err != nil {
		t.Fatal(err)
	}
	n.want(filepath.Join(n.config.CNIBinDir, Plugin), "plugin one", 0o755)
	n.want(filepath.Join(n.folder(), Library), "library two", 0o755)
	n.install()
	n.want(filepath.Join(n.config.CNIBinDir, Plugin), "plugin two", 0o755)
}

// What is right is not unpacked again: it would be, and fail, where the image's file is damaged. A changed file is put right.
func TestOnlyAChangedPluginIsUnpacked(t *testing.T) {
	n := newNode(t)
	n.install()
	n.install() // reads what it has written
	n.write(filepath.Join(n.config.From, Plugin+packed), "damaged")
	n.install()
	path := filepath.Join(n.config.CNIBinDir, Plugin)
	for name, change := range map[string]func() error{
		"other contents of the same length": func() error { return os.WriteFile(path, []byte("plugin eno"), 0o755) },
		"another mode":                      func() error { return os.Chmod(path, 0o700) },
		"another file":                      func() error { return os.Rename(filepath.Join(n.config.From, Library+packed), path) },
		"none":                              func() error { return os.Remove(path) },
	} {
		n.image("library one", "plugin one")
		n.install()
		n.install()
		n.write(filepath.Join(n.config.From, Plugin+packed), "damaged")
		time.Sleep(20 * time.Millisecond) // older kernels stamp changes by their tick
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := n.installer.Install(true); err == nil {
			t.Errorf("%s: not seen", name)
		}
		n.image("library one", "plugin one")
		n.install()
		n.want(path, "plugin one", 0o755)
	}
}

func TestAnUpgradeKeepsWhatPodsUse(t *testing.T) {
	n := newNode(t)
	n.install()
	first := n.folder()
	if folder, err := n.installer.Hand([]string{"tsn-0", "tsn-1"}); err != nil || folder != first {
		t.Fatalf("%s, %v", folder, err)
	}
	n.image("library two", "plugin two")
	n.installer = New(n.config) // the agent was restarted
	n.install()
	second := n.folder()
	n.want(filepath.Join(n.config.CNIBinDir, Plugin), "plugin two", 0o755)
	n.want(filepath.Join(first, Library), "library one", 0o755)
	if folder, err := n.installer.Hand([]string{"tsn-1", "tsn-2"}); err != nil || folder != second || first == second {
		t.Fatalf("%s, %v", folder, err)
	}
	begin := time.Unix(1000, 0)
	clean := func(inUse ...string) []string {
		t.Helper()
		// A look, one when it is nearly time, and one when it is.
		for _, after := range []time.Duration{0, unusedMin - time.Second, unusedMin} {
			before := len(n.versions())
			if err := n.installer.Clean(inUse, begin.Add(after)); err != nil {
				t.Fatal(err)
			}
			if after < unusedMin && len(n.versions()) != before {
				t.Errorf("removed after %s", after)
			}
		}
		begin = begin.Add(time.Hour)
		return n.versions()
	}
	if left := clean("tsn-0", "tsn-2"); len(left) != 2 {
		t.Errorf("a pod still mounts %s: left %v", first, left)
	}
	if left := clean("tsn-1", "tsn-9"); len(left) != 2 {
		t.Errorf("tsn-9 may have any version: left %v", left)
	}
	foreign := filepath.Join(n.config.LibDir, "somebody-elses")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if left := clean("tsn-1"); len(left) != 2 || left[0] != filepath.Base(second) || left[1] != "somebody-elses" {
		t.Errorf("left %v", left)
	}
	if left := clean(); len(left) != 2 {
		t.Errorf("the current version went: %v", left)
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(*node)
		text   string
	}{
		"no library":    {func(n *node) { n.t.Helper(); _ = os.Remove(filepath.Join(n.config.From, Library+packed)) }, "--install-from:"},
		"no plugin":     {func(n *node) { _ = os.Remove(filepath.Join(n.config.From, Plugin+packed)) }, "--install-from:"},
		"not packed":    {func(n *node) { n.write(filepath.Join(n.config.From, Plugin+packed), "plugin") }, Plugin + packed},
		"cut plugin":    {func(n *node) { _ = os.Truncate(filepath.Join(n.config.From, Plugin+packed), 20) }, Plugin + packed + ": unexpected EOF"},
		"no bin folder": {func(n *node) { _ = os.Remove(n.config.CNIBinDir) }, "--cni-bin-dir:"},
		"no conf":       {func(n *node) { n.config.CNIConf = "/nowhere/10-x.conf" }, "--cni-conf:"},
		"conf is no JSON": {func(n *node) {
			n.config.CNIConf = filepath.Join(n.config.From, Plugin+packed)
		}, "is not JSON"},
		"no conf folder": {func(n *node) {
			n.config.CNIConf = filepath.Join(n.config.From, "x.conf")
			n.write(n.config.CNIConf, "{}")
			_ = os.Remove(n.config.CNIConfDir)
		}, "--cni-conf-dir:"},
		"lib-dir is a file": {func(n *node) { n.write(n.config.LibDir, "") }, "--lib-dir:"},
		"nobody installs":   {func(n *node) { n.config.From = "" }, "no library is installed"},
	} {
		n := newNode(t)
		c.damage(n)
		if err := New(n.config).Install(true); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingIsHandedOutThatIsNotThere(t *testing.T) {
	n := newNode(t)
	if _, err := n.installer.Hand([]string{"tsn-0"}); err == nil {
		t.Error("handed out before it was installed")
	}
	n.install()
	if err := os.Remove(filepath.Join(n.folder(), Preload)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.installer.Hand([]string{"tsn-0"}); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("half a version: %v", err)
	}
	n.install()
	n.write(filepath.Join(n.config.LibDir, allocations), "null")
	if _, err := n.installer.Hand([]string{"tsn-0"}); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("nobody knows what pods have: %v", err)
	}
	if err := n.installer.Clean(nil, time.Now()); err == nil {
		t.Error("cleaned without knowing what pods have")
	}
}

func TestNoTemporaryFileStays(t *testing.T) {
	n := newNode(t)
	n.install()
	n.install()
	err := filepath.WalkDir(filepath.Dir(n.config.LibDir), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".") {
			t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
