// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netns"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// The plugin as it is built for tests: it can be killed at a named point.
var plugin string

const debianPlugins = "/usr/lib/cni"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		directory, err := os.MkdirTemp("", "tsn-cni")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(directory)
		plugin = filepath.Join(directory, "tsn-cni")
		if out, err := exec.Command("go", "build", "-tags", "ktsnfault,grpcnotrace,nethttpomithttp2", "-o", plugin, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %s\n", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A node: a namespace with an uplink to a second one, and a run directory for its ktsnd.
type world struct {
	t         *testing.T
	node, far string // names of namespaces
	runDir    string
	stateDir  string
	daemon    *exec.Cmd
}

var namespaces atomic.Int32

// Namespace makes one that goes with the test, whatever happens; scripts/leftovers.sh finds the suite by its name.
func namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("ktsnf%d-c%d", os.Getpid(), namespaces.Add(1))
	ip(t, "netns", "add", name)
	t.Cleanup(func() {
		if _, err := os.Stat(path(name)); err == nil {
			ip(t, "netns", "del", name)
		}
	})
	ip(t, "-n", name, "link", "set", "lo", "up")
	return name
}

func path(namespace string) string { return "/run/netns/" + namespace }

func ip(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := exec.Command("ip", arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// NewWorld makes a node; ktsnd is not started yet.
func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("these tests make network namespaces: run them as root")
	}
	w := &world{t: t, node: namespace(t), far: namespace(t), runDir: t.TempDir(), stateDir: filepath.Join(t.TempDir(), "state")}
	ip(t, "link", "add", "up0", "netns", w.node, "type", "veth", "peer", "name", "up0", "netns", w.far)
	for name, last := range map[string]string{w.node: "1", w.far: "2"} {
		ip(t, "-n", name, "link", "set", "up0", "up")
		ip(t, "-n", name, "address", "add", "192.168.50."+last+"/24", "dev", "up0")
		ip(t, "-n", name, "route", "add", "default", "dev", "up0")
	}
	return w
}

// In runs a function on a thread in the namespace; programs that it starts are there too.
func in(t *testing.T, namespace string, run func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never given back: the thread ends with the goroutine
		handle, err := netns.GetFromPath(path(namespace))
		if err == nil {
			err = netns.Set(handle)
			handle.Close()
		}
		if err == nil {
			run()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// BuiltProgram finds what cargo built: scripts/go.sh builds it in the debug profile first.
func builtProgram(t *testing.T, name string) string {
	t.Helper()
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = "../../../target"
	}
	for _, profile := range []string{"debug", "release"} {
		if found := filepath.Join(target, profile, name); exec.Command("test", "-x", found).Run() == nil {
			absolute, err := filepath.Abs(found)
			if err != nil {
				t.Fatal(err)
			}
			return absolute
		}
	}
	t.Skip(name + " is not built: make build")
	return ""
}

// StartDaemon starts the real ktsnd of the node and waits for it.
func (w *world) startDaemon() {
	w.t.Helper()
	program := builtProgram(w.t, "ktsnd")
	config := filepath.Join(w.runDir, "ktsnd.toml")
	// No real-time thread: nothing is timed here, and many daemons may run at once.
	content := "[daemon]\nmlock = false\n[[port]]\ndevice = \"up0\"\npriority = 0\nadapter = \"af_packet\"\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	daemon := exec.Command(program, "--config", config, "--run-dir", w.runDir, "--log", "warn")
	log, err := os.OpenFile(filepath.Join(w.runDir, "ktsnd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{}
	in(w.t, w.node, func() { err = daemon.Start() })
	if err != nil {
		w.t.Fatal(err)
	}
	w.daemon = daemon
	w.t.Cleanup(w.stopDaemon)
	if _, err := w.api().Health(within(w.t, 20*time.Second), &nodeapi.HealthRequest{}); err != nil {
		content, _ := os.ReadFile(log.Name())
		w.t.Fatalf("%v\n%s", err, content)
	}
}

func (w *world) stopDaemon() {
	if w.daemon != nil {
		w.daemon.Process.Signal(syscall.SIGTERM)
		w.daemon.Wait()
		w.daemon = nil
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func (w *world) api() *nodeapi.Daemon {
	w.t.Helper()
	daemon := nodeapi.New(w.runDir)
	w.t.Cleanup(func() { daemon.Close() })
	return daemon
}

// attachment is what these tests read of an attachment that ktsnd lists.
type attachment struct {
	nodeapi.Attachment
	Interface string          `json:"interface"`
	Late      string          `json:"late"`
	Take      json.RawMessage `json:"take"`
	Addresses json.RawMessage `json:"addresses"`
}

// attachments by name, as ktsnd lists them.
func (w *world) attachments() map[string]*attachment {
	w.t.Helper()
	reply, err := w.api().List(within(w.t, 10*time.Second), &nodeapi.ListRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]*attachment{}
	for _, listed := range reply.GetAttachments() {
		var one attachment
		if err := json.Unmarshal([]byte(listed.GetAttachment()), &one); err != nil {
			w.t.Fatalf("%v: %s", err, listed.GetAttachment())
		}
		found[one.Name] = &one
	}
	return found
}

// A call of the plugin, as a runtime makes it.
type call struct {
	verb, container, netns, ifName, args string
	stdin                                string
	dieAt                                string
}

// Conf is a network's configuration with the world's directories; fields are added or, with nil, left out.
func (w *world) conf(fields map[string]any) string {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "tsn", "type": "tsn-cni", "run_dir": w.runDir, "state_dir": w.stateDir, "uplink": "up0",
	}
	for name, value := range fields {
		conf[name] = value
		if value == nil {
			delete(conf, name)
		}
	}
	content, err := json.Marshal(conf)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(content)
}

// IPAM with ranges of its own and its leases in the world's directory.
func (w *world) ipam(subnets ...string) map[string]any {
	ranges := []any{}
	for _, subnet := range subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": subnet}})
	}
	return map[string]any{"type": "host-local", "dataDir": filepath.Join(w.stateDir, "../leases"), "ranges": ranges}
}

func (w *world) leases() []string {
	found, _ := filepath.Glob(filepath.Join(w.stateDir, "../leases/*/[0-9a-f]*[.:]*"))
	return found
}

// Run calls the plugin on the node.
func (w *world) run(c call) (stdout []byte, err error) {
	w.t.Helper()
	command := exec.Command(plugin)
	command.Env = append(os.Environ(), "CNI_COMMAND="+c.verb, "CNI_CONTAINERID="+c.container, "CNI_NETNS="+c.netns,
		"CNI_IFNAME="+c.ifName, "CNI_ARGS="+c.args, "CNI_PATH="+filepath.Dir(plugin)+":"+debianPlugins, "KTSN_CNI_DIE_AT="+c.dieAt,
		"KTSN_RUN_DIR="+w.runDir, "KTSN_CNI_STATE_DIR="+w.stateDir)
	command.Stdin = strings.NewReader(c.stdin)
	var out, log bytes.Buffer
	command.Stdout, command.Stderr = &out, &log
	in(w.t, w.node, func() { err = command.Run() })
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	cniError := &types.Error{}
	if json.Unmarshal(out.Bytes(), cniError) != nil || cniError.Msg == "" {
		if c.dieAt == "" {
			w.t.Fatalf("%s: no error in CNI's form, but %q, %q, %v", c.verb, out.String(), log.String(), err)
		}
		return nil, err
	}
	return nil, cniError
}

// Must calls the plugin, which has to succeed.
func (w *world) must(c call) []byte {
	w.t.Helper()
	out, err := w.run(c)
	if err != nil {
		w.t.Fatalf("%s: %v", c.verb, err)
	}
	return out
}

// Refused calls the plugin, which has to fail with that code and those words.
func (w *world) refused(c call, code uint, words ...string) {
	w.t.Helper()
	_, err := w.run(c)
	var cniError *types.Error
	if !errors.As(err, &cniError) {
		w.t.Fatalf("%s: %v, expected code %d", c.verb, err, code)
	}
	if cniError.Code != code {
		w.t.Errorf("%s: code %d, expected %d: %s", c.verb, cniError.Code, code, cniError.Msg)
	}
	for _, word := range words {
		if !strings.Contains(cniError.Msg, word) {
			w.t.Errorf("%s: does not say %q: %s", c.verb, word, cniError.Msg)
		}
	}
}

// NothingLeft: no state, no link, no lease, no attachment, nothing owed.
func (w *world) nothingLeft() {
	w.t.Helper()
	directory := cnistate.Open(w.stateDir)
	states, err := directory.List()
	if len(states) > 0 || err != nil || len(directory.Owed()) > 0 {
		w.t.Errorf("left: states %v, %v, owed %v", states, err, directory.Owed())
	}
	entries, _ := os.ReadDir(w.stateDir)
	for _, entry := range entries {
		if entry.Name() != ".lock" {
			w.t.Errorf("left in the state directory: %s", entry.Name())
		}
	}
	if leases := w.leases(); len(leases) > 0 {
		w.t.Errorf("left: leases %v", leases)
	}
	for _, link := range w.links() {
		if strings.HasPrefix(link, "ktsn") {
			w.t.Errorf("left: link %s", link)
		}
	}
	if w.daemon != nil {
		if found := w.attachments(); len(found) > 0 {
			w.t.Errorf("left: attachments %v", found)
		}
	}
}

func (w *world) links() []string {
	var names []string
	in(w.t, w.node, func() {
		found, err := net.Interfaces()
		if err != nil {
			return
		}
		for _, one := range found {
			names = append(names, one.Name)
		}
	})
	if len(names) == 0 {
		w.t.Fatal("the node has no link at all")
	}
	return names
}
