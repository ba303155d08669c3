// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cnistate"
)

func validAttachments(containers ...string) []map[string]string {
	list := []map[string]string{}
	for _, container := range containers {
		list = append(list, map[string]string{"containerID": container, "ifname": "tsn0"})
	}
	return list
}

// A lost state and a configuration that tells nothing: DEL cannot know of the address. GC, which has the network's configuration, gives it back, and
// only that one.
func TestGCGivesBackLostAddresses(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	fields := map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99::/64")}
	for _, container := range []string{"c1", "c2", "c3"} {
		w.must(call{verb: "ADD", container: container, netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(fields)})
	}
	w.lose("c1")
	w.must(call{verb: "DEL", container: "c1", ifName: "tsn0", stdin: `{"cniVersion":"1.0.0","name":"tsn","type":"tsn-cni"}`})
	if leases := w.leases(); len(leases) != 6 {
		t.Fatalf("leases %v: nothing to collect", leases)
	}
	// A pod that lives, whose state was lost, is named by the runtime.
	w.lose("c3")
	fields["cni.dev/valid-attachments"] = validAttachments("c2", "c3")
	gc := call{verb: "GC", stdin: w.conf(fields)}
	w.must(gc)
	if leases, attached := w.leases(), w.attachments(); len(leases) != 4 || len(attached) != 2 {
		t.Errorf("leases %v, attachments %v", leases, attached)
	}
	// An ADD that is at work holds its lock.
	unlock, err := cnistate.Open(w.stateDir).TryLock("c3", "tsn0")
	if err != nil {
		t.Fatal(err)
	}
	fields["cni.dev/valid-attachments"] = validAttachments("c2")
	gc.stdin = w.conf(fields)
	w.must(gc)
	if leases := w.leases(); len(leases) != 4 {
		t.Errorf("taken from a run that is at work: %v", leases)
	}
	unlock()
	w.must(gc) // its link and its attachment go with it
	if leases, attached := w.leases(), w.attachments(); len(leases) != 2 || len(attached) != 1 {
		t.Errorf("leases %v, attachments %v", leases, attached)
	}
	fields["cni.dev/valid-attachments"] = validAttachments()
	gc.stdin = w.conf(fields)
	w.must(gc)
	w.nothingLeft()
}

func (w *world) lose(container string) {
	w.t.Helper()
	if err := os.RemoveAll(filepath.Join(w.stateDir, container)); err != nil {
		w.t.Fatal(err)
	}
}

// Networks without ranges of their own share the node's prefixes: no address is given out twice, and GC of one network leaves the other's.
func TestNetworksOfTheNodesPrefixes(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	w.writeNode(map[string]any{"ready": true, "prefixes": []string{"10.99.7.0/24"}})
	ipam := map[string]any{"type": "host-local", "dataDir": filepath.Join(w.stateDir, "../leases")}
	conf := func(network string, valid any) string {
		fields := map[string]any{"name": network, "ipam": ipam}
		if valid != nil {
			fields["cni.dev/valid-attachments"] = valid
		}
		return w.conf(fields)
	}
	for index, network := range []string{"tsn", "captured", "tsn", "captured"} {
		c := call{verb: "ADD", container: []string{"c1", "c2", "c3", "c4"}[index], netns: path(namespace(t)), ifName: "tsn0", stdin: conf(network, nil)}
		w.must(c)
		c.verb = "CHECK"
		w.must(c)
	}
	if leases := w.leases(); len(leases) != 4 {
		t.Errorf("leases %v", leases)
	}
	// c3 is gone with all that is known of it; c4's state is lost, but it lives, in a network that this GC is not about.
	w.lose("c3")
	w.lose("c4")
	w.must(call{verb: "DEL", container: "c3", ifName: "tsn0", stdin: `{"cniVersion":"1.0.0","name":"tsn","type":"tsn-cni"}`})
	w.must(call{verb: "GC", stdin: conf("tsn", validAttachments("c1"))})
	if leases, attached := w.leases(), w.attachments(); len(leases) != 3 || attached["c3/tsn0"] != nil || len(attached) != 3 {
		t.Errorf("leases %v, attachments %v", leases, attached)
	}
	for _, container := range []string{"c1", "c2", "c4"} {
		w.must(call{verb: "DEL", container: container, ifName: "tsn0", stdin: conf("tsn", nil)})
	}
	w.nothingLeft()
}

// A broken state does not say which network it belongs to: GC collects the others, DEL removes it.
func TestGCWithABrokenState(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	fields := map[string]any{"ipam": w.ipam("10.99.1.0/24")}
	for _, container := range []string{"c1", "c2"} {
		w.must(call{verb: "ADD", container: container, netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(fields)})
	}
	w.spoil("c1", "tsn0")
	stdin := w.conf(fields)
	fields["cni.dev/valid-attachments"] = []string{}
	w.must(call{verb: "GC", stdin: w.conf(fields)})
	if attached := w.attachments(); len(attached) != 1 || attached["c1/tsn0"] == nil || len(w.leases()) != 1 {
		t.Errorf("%v, %v", attached, w.leases())
	}
	w.must(call{verb: "DEL", container: "c1", ifName: "tsn0", stdin: stdin})
	w.nothingLeft()
}

// The verb is handed on to the IPAM plugin; what it says is heard, unless it does not know the verb.
func TestGCIsHandedOnToIPAM(t *testing.T) {
	w := newWorld(t)
	seen := filepath.Join(w.stateDir, "../seen")
	answer := filepath.Join(w.stateDir, "../answer")
	script := "#!/bin/sh\ncat >" + seen + "\n[ \"$CNI_COMMAND\" = GC ] || exit 9\n[ -s " + answer + " ] || exit 0\ncat " + answer + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(plugin), "knows-gc"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	gc := call{verb: "GC", stdin: w.conf(map[string]any{"ipam": map[string]any{"type": "knows-gc"}, "cni.dev/valid-attachments": validAttachments("c1")})}
	w.must(gc)
	if content, err := os.ReadFile(seen); err != nil || !strings.Contains(string(content), `"containerID":"c1"`) {
		t.Errorf("%s, %v", content, err)
	}
	for text, isHeard := range map[string]bool{
		`{"code":4,"msg":"unknown CNI_COMMAND: GC"}`: false, `{"code":1,"msg":"config version does not allow GC"}`: false,
		`{"code":3,"msg":"missing containerID"}`: false,
		`{"code":11,"msg":"the pool is away"}`:   true,
	} {
		if err := os.WriteFile(answer, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if isHeard {
			w.refused(gc, types.ErrTryAgainLater, "ipam: knows-gc: the pool is away")
		} else {
			w.must(gc)
		}
	}
}
