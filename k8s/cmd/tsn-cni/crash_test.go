// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// The process is killed between any two steps: DEL alone, a second ADD, and GC each leave nothing behind.
func TestKilledAtEachStep(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	var places []string
	for _, step := range steps {
		places = append(places, "before "+step.name, "undo "+step.name)
	}
	places = append(places, "before result", "undo state")
	for index, place := range places {
		for _, healer := range []string{"DEL", "ADD", "GC"} {
			t.Run(place+", then "+healer, func(t *testing.T) {
				w := &world{t: t, node: w.node, far: w.far, runDir: w.runDir, stateDir: w.stateDir, daemon: w.daemon}
				pod := namespace(t)
				container := fmt.Sprintf("c%d%s", index, strings.ToLower(healer))
				conf := map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99::/64")}
				c := call{verb: "ADD", container: container, netns: path(pod), ifName: "tsn0", stdin: w.conf(conf), dieAt: place}
				if strings.HasPrefix(place, "undo") {
					c.dieAt = ""
					w.must(c)
					c.verb, c.dieAt = "DEL", place
				}
				if _, err := w.run(c); err == nil {
					t.Fatalf("not killed at %s", place)
				}
				c.dieAt = ""
				switch healer {
				case "ADD":
					c.verb = "ADD"
					w.must(c)
				case "GC":
					conf["cni.dev/valid-attachments"] = []string{}
					w.must(call{verb: "GC", stdin: w.conf(conf)})
					w.nothingLeft()
					return
				}
				c.verb = "DEL"
				w.must(c)
				w.nothingLeft()
			})
		}
	}
}

// A step that fails takes back the ones before it.
func TestFailedStepsAreTakenBack(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	ip(t, "-n", pod, "link", "add", "taken", "type", "bridge")
	for name, c := range map[string]struct {
		fields map[string]any
		ifName string
		code   uint
		words  []string
	}{
		"ktsnd refuses a field":    {map[string]any{"late": "soon"}, "tsn0", types.ErrInvalidNetworkConfig, []string{"configuration: late: ", "soon"}},
		"no such uplink":           {map[string]any{"uplink": "nothing0"}, "tsn0", codeRefused, []string{"nothing0"}},
		"the interface is there":   {nil, "taken", codeExists, []string{"taken"}},
		"no such IPAM plugin":      {map[string]any{"ipam": map[string]any{"type": "nothing"}}, "tsn0", types.ErrInvalidNetworkConfig, []string{"ipam:", "nothing"}},
		"addresses are used up":    {map[string]any{"ipam": w.tiny()}, "tsn0", types.ErrInternal, []string{"ipam: host-local"}},
		"an MTU the kernel denies": {map[string]any{"mtu": 1200, "ipam": w.ipam("fd99::/64")}, "tsn0", codeLink, []string{"MTU below 1280"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, node: w.node, far: w.far, runDir: w.runDir, stateDir: w.stateDir, daemon: w.daemon}
			fields := map[string]any{"ipam": w.ipam("10.99.1.0/24")}
			for field, value := range c.fields {
				fields[field] = value
			}
			if name == "addresses are used up" {
				other := call{verb: "ADD", container: "other", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(fields)}
				w.must(other)
				defer func() { other.verb = "DEL"; w.must(other); w.nothingLeft() }()
			}
			w.refused(call{verb: "ADD", container: "c1", netns: path(pod), ifName: c.ifName, stdin: w.conf(fields)}, c.code, c.words...)
			if name != "addresses are used up" {
				w.nothingLeft()
			}
		})
	}
	if out, err := exec.Command("ip", "-n", pod, "link", "show", "taken").CombinedOutput(); err != nil {
		t.Errorf("the other interface went: %s", out)
	}
}

// One address: .1 is the gateway's, .2 the last that host-local gives.
func (w *world) tiny() map[string]any {
	ipam := w.ipam("10.98.0.0/30")
	ipam["ranges"] = []any{[]any{map[string]any{"subnet": "10.98.0.0/29", "rangeStart": "10.98.0.2", "rangeEnd": "10.98.0.2"}}}
	return ipam
}

func TestUnreachableDaemonAndWrongPlaces(t *testing.T) {
	w := newWorld(t)
	add := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
	w.refused(add, types.ErrTryAgainLater, "ktsnd is not running: no socket at "+w.runDir)
	w.nothingLeft()
	w.startDaemon()
	gone := add
	gone.netns = "/run/netns/ktsnf-nothing"
	w.refused(gone, types.ErrInvalidNetNS, "ktsnf-nothing")
	w.nothingLeft()
	own := add
	own.netns = path(w.node)
	w.refused(own, types.ErrInvalidNetNS, "own network namespace")
	w.nothingLeft()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	add.stdin = w.conf(map[string]any{"state_dir": file})
	w.refused(add, codeState, file)
}

// Fifty pods up and down at once, while the same names are asked for twice.
func TestFiftyPodsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	const count = 50
	var pods [count]string
	for index := range pods {
		pods[index] = namespace(t)
	}
	stdin := w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99::/64")})
	before := len(w.links())
	all := func(verb string) {
		var group sync.WaitGroup
		slots := make(chan struct{}, 8)
		for index, pod := range pods {
			group.Add(1)
			go func() {
				defer group.Done()
				slots <- struct{}{}
				defer func() { <-slots }()
				c := call{verb: verb, container: fmt.Sprintf("c%d", index), netns: path(pod), ifName: "tsn0", stdin: stdin}
				if _, err := w.run(c); err != nil {
					t.Errorf("%s %d: %v", verb, index, err)
				}
			}()
		}
		group.Wait()
	}
	all("ADD")
	if found := len(w.attachments()); found != count {
		t.Errorf("%d attachments", found)
	}
	if found := len(w.links()); found != before+count {
		t.Errorf("%d links, %d before", found, before)
	}
	all("DEL")
	w.nothingLeft()
	all("ADD")
	for _, pod := range pods {
		ip(t, "netns", "del", pod) // the pods are gone before DEL comes
	}
	all("DEL")
	w.nothingLeft()
}

// Two runtimes at once ask for the same interface: one is served.
func TestTwoAddsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
	results := make(chan error, 4)
	for range cap(results) {
		go func() {
			_, err := w.run(c)
			results <- err
		}()
	}
	served := 0
	for range cap(results) {
		if <-results == nil {
			served++
		}
	}
	if served != 1 || len(w.leases()) != 1 || len(w.attachments()) != 1 {
		t.Errorf("%d served, leases %v", served, w.leases())
	}
	c.verb = "DEL"
	w.must(c)
	w.nothingLeft()
}
