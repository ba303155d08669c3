// SPDX-License-Identifier: Apache-2.0

// Package install puts what the node needs onto the node: libktsn.so in a folder of its version, tsn-cni, and if wanted a
// CNI configuration.
//
// In: the agent's image. Out: files on the node, each whole at any moment (written beside, synchronised, renamed).
//
//	LIB_DIR/0.1.0-5d41402abc4b/{libktsn.so,ld.so.preload}    version and contents: never changed again
//	LIB_DIR/current -> 0.1.0-5d41402abc4b
//	LIB_DIR/allocations.json                                 which slot was handed which version
//
// A version stays while a pod's slot was handed it: the kubelet mounts the same paths again when it restarts a
// container, also after a reboot. It must never write into a file that a program may have mapped.
package install

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"ktsn.io/ktsn/k8s/internal/deviceplugin"
	"ktsn.io/ktsn/k8s/internal/nodefile"
)

// Names of files, in the image and on the node.
const (
	Library     = "libktsn.so"
	Preload     = "ld.so.preload"
	Plugin      = "tsn-cni"
	packed      = ".gz" // in the image, where neither is used
	current     = "current"
	allocations = "allocations.json"
)

// versionName is what folders of versions are called; nothing else in LIB_DIR is ever removed.
var versionName = regexp.MustCompile(`^[0-9][0-9A-Za-z.+]*-[0-9a-f]{12}$`)

// Config says from where to where.
type Config struct {
	// From holds libktsn.so.gz and tsn-cni.gz; empty: the agent installs nothing.
	From string
	// Version of this release.
	Version string
	// LibDir is the library's folder on the node.
	LibDir string
	// CNIBinDir is the container runtime's folder of CNI plugins.
	CNIBinDir string
	// CNIConf is a configuration to copy into CNIConfDir; empty: none.
	CNIConf    string
	CNIConfDir string
	Log        *slog.Logger
}

// Installer installs, hands out and cleans up.
type Installer struct {
	config Config
	mutex  sync.Mutex
	unused map[string]time.Time // since when a version has been seen unused

	right stamp // the node's tsn-cni when it was read and was right; only Install uses it
}

// stamp says whether a file was changed: what the kernel changes with its contents, its mode or its name.
type stamp struct {
	device, inode, octets uint64
	changed               syscall.Timespec
}

// stampOf a file; the zero stamp where there is none.
func stampOf(path string) stamp {
	var found syscall.Stat_t
	if err := syscall.Stat(path, &found); err != nil {
		return stamp{}
	}
	return stamp{device: found.Dev, inode: found.Ino, octets: uint64(found.Size), changed: found.Ctim}
}

// New makes an installer; it does nothing yet.
func New(config Config) *Installer {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	return &Installer{config: config}
}

// Install copies the image's files to the node, tsn-cni only if it is wanted. It is repeated now and then: it leaves right files alone and
// repairs changed ones.
func (i *Installer) Install(hasPlugin bool) error {
	if i.config.From == "" {
		_, err := i.current()
		return err
	}
	err := errors.Join(i.library(), i.configuration())
	if hasPlugin {
		err = errors.Join(err, i.plugin())
	}
	return err
}

func (i *Installer) library() error {
	data, err := unpack(filepath.Join(i.config.From, Library+packed))
	if err != nil {
		return fmt.Errorf("--install-from: %w", err)
	}
	sum := sha256.Sum256(data)
	name := i.config.Version + "-" + hex.EncodeToString(sum[:6])
	folder := filepath.Join(i.config.LibDir, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("--lib-dir: %w", err)
	}
	_, library := i.put(filepath.Join(folder, Library), data, 0o755)
	_, preload := i.put(filepath.Join(folder, Preload), []byte(deviceplugin.ContainerLibrary+"\n"), 0o644)
	if err := errors.Join(library, preload); err != nil {
		return fmt.Errorf("--lib-dir: %w", err)
	}
	return i.point(name)
}

// point makes `current` name a version.
func (i *Installer) point(name string) error {
	link := filepath.Join(i.config.LibDir, current)
	if now, err := os.Readlink(link); err == nil && now == name {
		return nil
	}
	beside := filepath.Join(i.config.LibDir, fmt.Sprintf(".%s.%d", current, os.Getpid()))
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--lib-dir: %w", err)
	}
	if err := os.Symlink(name, beside); err != nil {
		return fmt.Errorf("--lib-dir: %w", err)
	}
	if err := os.Rename(beside, link); err != nil {
		return fmt.Errorf("--lib-dir: %w", errors.Join(err, os.Remove(beside)))
	}
	i.config.Log.Info("library installed", "version", name)
	return nil
}

// plugin is unpacked only where the file was changed since it was last read: that takes a CPU for 70 ms.
func (i *Installer) plugin() error {
	path := filepath.Join(i.config.CNIBinDir, Plugin)
	before := stampOf(path)
	if before != (stamp{}) && before == i.right {
		return nil
	}
	data, err := unpack(filepath.Join(i.config.From, Plugin+packed))
	if err != nil {
		return fmt.Errorf("--install-from: %w", err)
	}
	isRight, err := i.put(path, data, 0o755)
	if err != nil {
		return fmt.Errorf("--cni-bin-dir: %w", err)
	}
	if isRight {
		i.right = before
	}
	return nil
}

// unpack reads a file that gzip has packed; its check sums hold.
func unpack(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	data, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

func (i *Installer) configuration() error {
	if i.config.CNIConf == "" {
		return nil
	}
	data, err := os.ReadFile(i.config.CNIConf)
	if err != nil {
		return fmt.Errorf("--cni-conf: %w", err)
	}
	if !json.Valid(data) {
		return fmt.Errorf("--cni-conf: %s is not JSON: the container runtime would refuse it", i.config.CNIConf)
	}
	if _, err := i.put(filepath.Join(i.config.CNIConfDir, filepath.Base(i.config.CNIConf)), data, 0o644); err != nil {
		return fmt.Errorf("--cni-conf-dir: %w", err)
	}
	return nil
}

// put writes a file unless it has these contents and this mode; isRight when it had.
func (i *Installer) put(path string, data []byte, mode os.FileMode) (isRight bool, err error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == mode {
			return true, nil
		}
	}
	if err := nodefile.WriteFile(path, data, mode); err != nil {
		return false, err
	}
	i.config.Log.Info("installed", "file", path, "octets", len(data))
	return false, nil
}

// current is the version that `current` names, if it is whole.
func (i *Installer) current() (string, error) {
	name, err := os.Readlink(filepath.Join(i.config.LibDir, current))
	if err != nil {
		return "", fmt.Errorf("no library is installed: %w", err)
	}
	for _, file := range []string{Library, Preload} {
		if _, err := os.Stat(filepath.Join(i.config.LibDir, name, file)); err != nil {
			return "", fmt.Errorf("version %s of the library is not whole: %w", name, err)
		}
	}
	return name, nil
}

// Folder of the current version.
func (i *Installer) Folder() (string, error) {
	name, err := i.current()
	return filepath.Join(i.config.LibDir, name), err
}

// Hand implements deviceplugin.Libraries. What cannot be remembered is not handed out: it might be removed under a pod.
func (i *Installer) Hand(devices []string) (string, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	name, err := i.current()
	if err != nil {
		return "", err
	}
	handed, err := i.allocations()
	if err != nil {
		return "", err
	}
	changed := false
	for _, device := range devices {
		changed = changed || handed[device] != name
		handed[device] = name
	}
	if changed {
		if err := nodefile.WriteJSON(i.allocationsPath(), handed); err != nil {
			return "", fmt.Errorf("which version a pod has cannot be remembered: %w", err)
		}
	}
	return filepath.Join(i.config.LibDir, name), nil
}

func (i *Installer) allocationsPath() string { return filepath.Join(i.config.LibDir, allocations) }

// allocations reads which slot was handed which version.
func (i *Installer) allocations() (map[string]string, error) {
	handed := map[string]string{}
	data, err := os.ReadFile(i.allocationsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return handed, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &handed); err != nil || handed == nil {
		return nil, fmt.Errorf("%s is damaged (%v): remove it when no pod of this node uses KTSN", i.allocationsPath(), err)
	}
	return handed, nil
}

// unusedMin is how long a version must have been seen unused, in every look: a kubelet that has just started lists no pods.
const unusedMin = 30 * time.Minute

// Clean removes versions that no slot in use was handed for long. `inUse` are the slots that pods have now, as far as the
// kubelet knows.
func (i *Installer) Clean(inUse []string, now time.Time) error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	name, err := i.current()
	if err != nil {
		return err
	}
	handed, err := i.allocations()
	if err != nil {
		return err
	}
	keep := map[string]bool{name: true}
	for _, device := range inUse {
		version, known := handed[device]
		if !known {
			i.unused = nil
			return nil // a pod with a slot that we don't know of: it may use any of them
		}
		keep[version] = true
	}
	entries, err := os.ReadDir(i.config.LibDir)
	if err != nil {
		return fmt.Errorf("--lib-dir: %w", err)
	}
	unused := map[string]time.Time{}
	for _, entry := range entries {
		if !entry.IsDir() || keep[entry.Name()] || !versionName.MatchString(entry.Name()) {
			continue
		}
		since, seen := i.unused[entry.Name()]
		if !seen {
			since = now
		}
		if unused[entry.Name()] = since; now.Sub(since) < unusedMin {
			continue
		}
		if err := os.RemoveAll(filepath.Join(i.config.LibDir, entry.Name())); err != nil {
			return fmt.Errorf("--lib-dir: %w", err)
		}
		i.config.Log.Info("library removed: no pod uses it any more", "version", entry.Name())
	}
	i.unused = unused
	return nil
}
