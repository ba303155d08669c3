// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Program starts one of ours in a namespace, with the world's run directory.
func (w *world) program(namespace string, arguments ...string) (*exec.Cmd, *bytes.Buffer) {
	w.t.Helper()
	ktsn := builtProgram(w.t, "ktsn")
	command := exec.Command(ktsn, arguments...)
	command.Env = append(os.Environ(), "KTSN_RUN_DIR="+w.runDir)
	// Beside the program after make build; cargo alone leaves it in its profile's folder.
	if library := filepath.Join(filepath.Dir(ktsn), "../hook/libktsn.so"); exec.Command("test", "-f", filepath.Join(filepath.Dir(ktsn), "libktsn.so")).Run() != nil {
		command.Env = append(command.Env, "KTSN_LIB="+library)
	}
	out := &bytes.Buffer{}
	command.Stdout, command.Stderr = out, out
	var err error
	in(w.t, namespace, func() { err = command.Start() })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { command.Process.Kill() })
	return command, out
}

// Hears waits until a process, or another one of its namespace, has a UDP socket of IPv4 or IPv6 with this port.
func (w *world) hears(pid, port int) {
	w.t.Helper()
	eventually.Holds(w.t, fmt.Sprintf("a socket has port %d", port), func() bool {
		return slices.ContainsFunc([]string{"udp", "udp6"}, func(table string) bool {
			sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
			return err == nil && bytes.Contains(sockets, fmt.Appendf(nil, ":%04X ", port))
		})
	})
}

// Talk sends timed datagrams from one namespace to another; all must arrive, and ktsnd must have sent them. None is held to its
// time (overrun_limit): the machine may be busy with other tests.
func (w *world) talk(from, to, address, attachment string) {
	w.t.Helper()
	listener, heard := w.program(to, "listen", address+":5000", "--count", "50", "--timeout", "20s")
	w.hears(listener.Process.Pid, 5000)
	talker, said := w.program(from, "run", "--run-dir", w.runDir, "--", builtProgram(w.t, "ktsn"), "talk", address+":5000",
		"--count", "50", "--period", "5ms", "--lead", "3ms", "--clock", "monotonic")
	if err := talker.Wait(); err != nil {
		w.t.Errorf("talk: %v: %s", err, said)
	}
	if err := listener.Wait(); err != nil {
		w.t.Errorf("listen: %v: %s", err, heard)
	}
	// What has arrived is counted a moment later.
	var reply *nodeapi.StatisticsReply
	eventually.Holds(w.t, "ktsnd sent 50", func() bool {
		var err error
		reply, err = w.api().Statistics(within(w.t, 20*time.Second), &nodeapi.StatisticsRequest{Attachment: attachment})
		if err != nil || len(reply.GetAttachments()) != 1 {
			w.t.Fatalf("%v, %v", reply, err)
		}
		return reply.GetAttachments()[0].GetSent() == 50
	}, said)
}

func TestTimedDatagramsBetweenPodsOfOneNode(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	stdin := w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24"), "destinations": []string{"10.99.0.0/16"}, "late": "send", "overrun_limit": "5s"})
	pods := []string{namespace(t), namespace(t)}
	for index, pod := range pods {
		w.must(call{verb: "ADD", container: []string{"c1", "c2"}[index], netns: path(pod), ifName: "tsn0", stdin: stdin})
	}
	w.talk(pods[0], pods[1], "10.99.1.3", "c1/tsn0")
}

// Through a VXLAN device as the node agent makes it, to an address behind another node.
func TestTimedDatagramsToAnotherNode(t *testing.T) {
	w := newWorld(t)
	macs := map[string]string{}
	for name, last := range map[string]string{w.node: "1", w.far: "2"} {
		ip(t, "-n", name, "link", "add", "ktsn.1", "type", "vxlan", "id", "1588", "dstport", "4789", "local", "192.168.50."+last, "dev", "up0", "nolearning")
		ip(t, "-n", name, "link", "set", "ktsn.1", "up")
		macs[name] = strings.Fields(strings.SplitAfter(ip(t, "-n", name, "link", "show", "ktsn.1"), "link/ether ")[1])[0]
	}
	for _, way := range []struct{ at, to, third, end string }{{w.node, w.far, "2", "192.168.50.2"}, {w.far, w.node, "1", "192.168.50.1"}} {
		hop := "10.99." + way.third + ".0"
		ip(t, "-n", way.at, "route", "add", hop+"/24", "via", hop, "dev", "ktsn.1", "onlink")
		ip(t, "-n", way.at, "neigh", "add", hop, "lladdr", macs[way.to], "dev", "ktsn.1", "nud", "permanent")
		out, err := exec.Command("bridge", "-n", way.at, "fdb", "append", macs[way.to], "dev", "ktsn.1", "dst", way.end, "self", "permanent").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ip(t, "-n", w.far, "address", "add", "10.99.2.2/32", "dev", "lo")
	w.startDaemon()
	pod := namespace(t)
	w.writeNode(map[string]any{"ready": true, "prefixes": []string{"10.99.1.0/24"}, "cidrs": []string{"10.99.0.0/16"}, "mtu": 1450,
		"vxlan_device": "ktsn.1", "uplink": "up0"})
	ipam := map[string]any{"type": "host-local", "dataDir": filepath.Join(w.stateDir, "../leases")}
	w.must(call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": ipam, "uplink": nil, "late": "send", "overrun_limit": "5s"})})
	reach(t, pod, w.far, "10.99.2.2")
	w.talk(pod, w.far, "10.99.2.2", "c1/tsn0")
}
