// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"ktsn.io/ktsn/k8s/internal/cnistate"
)

func parsed(t *testing.T, printed []byte) *types100.Result {
	t.Helper()
	result := &types100.Result{}
	if err := json.Unmarshal(printed, result); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return result
}

func TestAddCheckDelStandaloneDualStack(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	stdin := w.conf(map[string]any{
		"ipam": w.ipam("10.99.1.0/24", "fd99:0:0:1::/64"), "mac": "02:00:00:00:00:07", "mtu": 1400,
		"destinations": []string{"10.99.0.0/16"}, "late": "send", "take": map[string]any{"priority_min": 6},
	})
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: stdin}
	result := parsed(t, w.must(c))
	if len(result.IPs) != 2 || len(result.Interfaces) != 2 || result.Interfaces[1].Sandbox != path(pod) {
		t.Fatalf("%+v", result)
	}
	if result.Interfaces[1].Mac != "02:00:00:00:00:07" || result.Interfaces[1].Mtu != 1400 {
		t.Errorf("%+v", result.Interfaces[1])
	}
	shown := ip(t, "-n", pod, "address", "show", "tsn0")
	for _, word := range []string{"10.99.1.2/32", "fd99:0:0:1::2/128", "mtu 1400", "02:00:00:00:00:07", "state UP"} {
		if !strings.Contains(shown, word) {
			t.Errorf("no %q in %s", word, shown)
		}
	}
	if shown := ip(t, "-n", pod, "route"); !strings.Contains(shown, "10.99.1.0/24 via 169.254.1.1 dev tsn0") {
		t.Error(shown)
	}
	name := cnistate.AttachmentName("c1", "tsn0")
	attached := w.attachments()[name]
	if attached == nil || attached.Late != "send" || string(attached.Take) != `{"priority_min":6}` || attached.Interface != "tsn0" {
		t.Fatalf("%v", attached)
	}

	w.must(call{verb: "CHECK", container: "c1", netns: path(pod), ifName: "tsn0",
		stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99:0:0:1::/64"), "prevResult": result})})
	w.refused(c, codeExists, "attached already")

	c.verb = "DEL"
	w.must(c)
	w.nothingLeft()
	w.must(c)
	if out, err := exec.Command("ip", "-n", pod, "link", "show", "tsn0").CombinedOutput(); err == nil {
		t.Errorf("left in the pod: %s", out)
	}
}

func TestPodsOfOneNodeReachEachOtherAndTheNode(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	stdin := w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99:0:0:1::/64")})
	pods := []string{namespace(t), namespace(t)}
	for _, pod := range pods {
		w.must(call{verb: "ADD", container: "c" + pod, netns: path(pod), ifName: "tsn0", stdin: stdin})
	}
	for _, to := range []string{"10.99.1.3", "fd99:0:0:1::3"} {
		reach(t, pods[0], pods[1], to)
	}
	reach(t, w.node, pods[1], "10.99.1.3")
	reach(t, pods[1], w.node, "169.254.1.1") // the way back of the node's own packets
	for _, pod := range pods {
		w.must(call{verb: "DEL", container: "c" + pod, netns: path(pod), ifName: "tsn0", stdin: stdin})
	}
	w.nothingLeft()
}

func TestCheckFindsWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	name := cnistate.AttachmentName("c1", "tsn0")
	host := cnistate.HostInterface("c1", "tsn0")
	for what, breakIt := range map[string]func(pod string){
		"no address 10.99.1.":    func(pod string) { ip(t, "-n", pod, "address", "flush", "dev", "tsn0") },
		"no route to":            func(pod string) { ip(t, "-n", pod, "route", "del", "10.99.1.0/24") },
		"is down":                func(pod string) { ip(t, "-n", w.node, "link", "set", host, "down") },
		"the pod's interface":    func(pod string) { ip(t, "-n", pod, "link", "del", "tsn0") },
		"ktsnd has no attach":    func(string) { w.detach(name) },
		"has MAC address":        func(pod string) { ip(t, "-n", pod, "link", "set", "tsn0", "address", "02:00:00:00:00:99") },
		"did not come to its en": func(string) { w.unfinished("c1", "tsn0") },
	} {
		pod := namespace(t)
		stdin := w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24"), "mtu": 1400})
		c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: stdin}
		w.must(c)
		breakIt(pod)
		c.verb = "CHECK"
		w.refused(c, codeMissing, what)
		c.verb = "DEL"
		w.must(c)
	}
	w.nothingLeft()
	w.refused(call{verb: "CHECK", container: "c9", netns: path(w.far), ifName: "tsn0", stdin: w.conf(nil)}, types.ErrUnknownContainer)
}

func TestDelNeedsNothing(t *testing.T) {
	for name, prepare := range map[string]func(w *world, pod string, c *call){
		"no netns":        func(_ *world, pod string, c *call) { ip(t, "netns", "del", pod); c.netns = "" },
		"stripped config": func(_ *world, _ string, c *call) { c.stdin = `{"cniVersion":"1.0.0","name":"tsn","type":"tsn-cni"}` },
		"no name in it":   func(_ *world, _ string, c *call) { c.stdin = `{"cniVersion":"0.3.1","type":"tsn-cni"}` },
		"no version":      func(_ *world, _ string, c *call) { c.stdin = `{"cniVersion":7,"name":"../x","type":"tsn-cni"}` },
		"a lost state with the node's ranges": func(w *world, _ string, c *call) {
			os.RemoveAll(filepath.Join(w.stateDir, "c1"))
			c.stdin = w.conf(map[string]any{"ipam": map[string]any{"type": "host-local", "dataDir": filepath.Join(w.stateDir, "../leases")}})
		},
		"no JSON at all": func(_ *world, _ string, c *call) { c.stdin = "" },
		"wrong fields": func(_ *world, _ string, c *call) {
			c.stdin = `{"cniVersion":"1.0.0","name":"tsn","mtu":"x","nonsense":1}`
		},
		"a broken state":   func(w *world, _ string, _ *call) { w.spoil("c1", "tsn0") },
		"no state":         func(w *world, _ string, _ *call) { os.RemoveAll(filepath.Join(w.stateDir, "c1")) },
		"no interface":     func(_ *world, pod string, _ *call) { ip(t, "-n", pod, "link", "del", "tsn0") },
		"detached by hand": func(w *world, _ string, _ *call) { w.detach("c1/tsn0") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.startDaemon()
			pod := namespace(t)
			c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
			w.must(c)
			c.verb = "DEL"
			prepare(w, pod, &c)
			w.must(c)
			w.must(c)
			w.nothingLeft()
		})
	}
}

func TestDelWithoutDaemonIsPaidLater(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod, next := namespace(t), namespace(t)
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
	w.must(c)
	w.stopDaemon()
	c.verb = "DEL"
	begin := time.Now()
	w.must(c)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("DEL took %v", took)
	}
	if owed := cnistate.Open(w.stateDir).Owed(); len(owed) != 1 || owed[0].Attachment != "c1/tsn0" {
		t.Errorf("owed: %v", owed)
	}
	if leases := w.leases(); len(leases) > 0 {
		t.Errorf("leases: %v", leases)
	}
	w.startDaemon()
	other := call{verb: "ADD", container: "c2", netns: path(next), ifName: "tsn0", stdin: c.stdin}
	w.must(other)
	if found := w.attachments(); len(found) != 1 || found["c2/tsn0"] == nil {
		t.Errorf("%v", found)
	}
	other.verb = "DEL"
	w.must(other)
	w.nothingLeft()
}

func TestGCTakesBackWhatTheRuntimeDoesNotName(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	stdin := map[string]any{"ipam": w.ipam("10.99.1.0/24")}
	for _, container := range []string{"c1", "c2", "c3"} {
		stdin["name"] = "tsn"
		if container == "c3" {
			stdin["name"], stdin["ipam"] = "other", w.ipam("10.99.2.0/24")
		}
		w.must(call{verb: "ADD", container: container, netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(stdin)})
	}
	stdin["name"], stdin["ipam"] = "tsn", w.ipam("10.99.1.0/24")
	stdin["cni.dev/valid-attachments"] = []map[string]string{{"containerID": "c1", "ifname": "tsn0"}}
	w.must(call{verb: "GC", stdin: w.conf(stdin)})
	left := w.attachments()
	if len(left) != 2 || left["c1/tsn0"] == nil || left["c3/tsn0"] == nil || len(w.leases()) != 2 {
		t.Errorf("%v, %v", left, w.leases())
	}
	for _, network := range []string{"tsn", "other"} {
		stdin["name"], stdin["cni.dev/valid-attachments"] = network, []string{}
		stdin["ipam"] = w.ipam("10.99.2.0/24")
		w.must(call{verb: "GC", stdin: w.conf(stdin)})
	}
	w.nothingLeft()
}

func TestGCWithoutAListTakesNothing(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	w.must(c)
	one := map[string]string{"containerID": "c1", "ifname": "tsn0"}
	for _, wrong := range []any{nil, one, []string{"c1"}, []any{map[string]string{"container": "c1"}}} {
		w.refused(call{verb: "GC", stdin: w.conf(map[string]any{"cni.dev/valid-attachments": wrong})}, types.ErrInvalidNetworkConfig, "valid-attachments")
	}
	if len(w.attachments()) != 1 {
		t.Error("taken back")
	}
	c.verb = "DEL"
	w.must(c)
	w.nothingLeft()
}

func TestDelOnAFullDisk(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	w.stateDir = filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(w.stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("small", w.stateDir, "tmpfs", 0, "size=65536"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(w.stateDir, unix.MNT_DETACH) })
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	w.must(c)
	if err := os.WriteFile(filepath.Join(w.stateDir, "full"), make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("not full")
	}
	c.verb = "DEL"
	w.must(c)
	os.Remove(filepath.Join(w.stateDir, "full"))
	w.nothingLeft()
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	ask := call{verb: "STATUS", stdin: w.conf(nil)}
	w.refused(ask, codeUnavailable, "ktsnd is not running: no socket at "+w.runDir)
	// As a part of the default network it must not take the node down.
	w.must(call{verb: "STATUS", stdin: w.conf(map[string]any{"attach": "asked"})})
	w.startDaemon()
	w.must(ask)
	w.must(call{verb: "STATUS", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})})
	w.refused(call{verb: "STATUS", stdin: w.conf(map[string]any{"ipam": map[string]any{"type": "host-local"}})},
		codeUnavailable, "does the node agent run?")
	w.writeNode(map[string]any{"capacity": 1, "ready": true, "prefixes": []string{"10.99.1.0/24"}})
	w.must(ask)
	add := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	w.must(add)
	w.refused(ask, codeLimited, "capacity is spent", "1 fit")
	w.refused(call{verb: "ADD", container: "c2", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}, codeCapacity, "capacity is spent")
	add.verb = "DEL"
	w.must(add)
	w.must(ask)
	w.nothingLeft()
}

func TestVersionNamesWhatIsSupported(t *testing.T) {
	w := newWorld(t)
	var reply struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(w.must(call{verb: "VERSION"}), &reply); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		if !slices.Contains(reply.SupportedVersions, wanted) {
			t.Errorf("%v", reply)
		}
	}
}
