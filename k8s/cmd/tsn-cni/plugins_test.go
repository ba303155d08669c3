// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"ktsn.io/ktsn/k8s/internal/cnistate"
)

// changes is one of Debian's plugins that change what another plugin made, with fields that change something.
type changes struct {
	kind   string
	fields map[string]any
	device string // that the plugin makes and not every kernel has; empty: none
}

func (w *world) changes() map[string]changes {
	tuning := map[string]any{"dataDir": filepath.Join(w.stateDir, "../tuning"), "mac": "02:00:00:00:00:99", "mtu": 1300, "promisc": true,
		"sysctl": map[string]string{"net.ipv4.conf.all.log_martians": "1"}}
	return map[string]changes{
		"tuning":         {"tuning", tuning, ""},
		"sbr":            {"sbr", nil, ""},
		"bandwidth":      {"bandwidth", map[string]any{"ingressRate": 100_000_000, "ingressBurst": 1_000_000}, ""},
		"bandwidth-both": {"bandwidth", map[string]any{"ingressRate": 100_000_000, "ingressBurst": 1_000_000, "egressRate": 100_000_000, "egressBurst": 1_000_000}, "ifb"},
		"portmap":        {"portmap", map[string]any{"capabilities": map[string]bool{"portMappings": true}, "backend": "iptables"}, ""},
		"firewall":       {"firewall", map[string]any{"backend": "iptables"}, ""},
		"vrf":            {"vrf", map[string]any{"vrfname": "red"}, "vrf"},
		"loopback":       {"loopback", nil, ""},
	}
}

func (c changes) plugin() map[string]any {
	made := map[string]any{"type": c.kind}
	for name, value := range c.fields {
		made[name] = value
	}
	return made
}

// needsKernel skips a plugin of which this kernel lacks the device.
func (c changes) needsKernel(w *world) {
	w.t.Helper()
	if c.device == "" {
		return
	}
	arguments := []string{"-n", w.node, "link", "add", "probe", "type", c.device}
	if c.device == "vrf" {
		arguments = append(arguments, "table", "99")
	}
	if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		w.t.Skipf("this kernel has no device of type %s: %s", c.device, out)
	}
	ip(w.t, "-n", w.node, "link", "del", "probe")
}

// listOf makes a chain of these plugins, in this order.
func (w *world) listOf(plugins ...map[string]any) *libcni.NetworkConfigList {
	w.t.Helper()
	content, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "tsn", "plugins": plugins})
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(content)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func (w *world) tsn(fields map[string]any) map[string]any {
	own := map[string]any{"type": "tsn-cni", "run_dir": w.runDir, "state_dir": w.stateDir, "uplink": "up0", "policies": "ignore",
		"destinations": []string{"10.98.0.0/15"}, "attach": "all"}
	for name, value := range fields {
		own[name] = value
	}
	return own
}

// allVerbs makes ADD, CHECK, a real fault, STATUS, DEL, ADD and GC of a chain.
//
// Some of Debian's plugins fail in their own CHECK: portmap does not find its own rules again, and bridge not its gateway after sbr or vrf. In
// such a chain only tsn-cni is asked.
func (w *world) allVerbs(list *libcni.NetworkConfigList, pod *libcni.RuntimeConf, isOwnCheck bool) {
	t := w.t
	t.Helper()
	library, ctx := w.library(), within(t, 2*time.Minute)
	printed, err := library.AddNetworkList(ctx, list, pod)
	if err != nil {
		t.Fatal(err)
	}
	result, err := types100.GetResult(printed)
	if err != nil || len(result.IPs) != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	address := result.IPs[0].Address.IP.String()
	if given := string(w.attachments()[pod.ContainerID+"/"+pod.IfName].Addresses); given != `["`+address+`"]` {
		t.Errorf("given: %q, expected %s", given, address)
	}
	if !strings.Contains(pod.ContainerID, "vrf") { // a socket outside of the VRF receives nothing
		reach(t, w.node, filepath.Base(pod.NetNS), address)
	}
	check := func() error {
		if !isOwnCheck {
			return library.CheckNetworkList(ctx, list, pod)
		}
		own := slices.IndexFunc(list.Plugins, func(one *libcni.PluginConfig) bool { return one.Network.Type == "tsn-cni" })
		var fields map[string]any
		if err := json.Unmarshal(list.Plugins[own].Bytes, &fields); err != nil {
			return err
		}
		fields["prevResult"], fields["name"], fields["cniVersion"] = result, "tsn", "1.0.0"
		_, err := w.run(call{verb: "CHECK", container: pod.ContainerID, netns: pod.NetNS, ifName: pod.IfName, stdin: w.conf(fields)})
		return err
	}
	if err := check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	w.detach(pod.ContainerID + "/" + pod.IfName)
	if err := check(); err == nil || !strings.Contains(err.Error(), "no attachment") {
		t.Errorf("CHECK without the attachment: %v", err)
	}
	w.must(call{verb: "STATUS", stdin: w.conf(nil)})
	if err := library.GetStatusNetworkList(ctx, list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := library.DelNetworkList(ctx, list, pod); err != nil {
		t.Errorf("DEL: %v", err)
	}
	w.nothingLeft()
	w.collected(ctx, library, list, pod)
}

// collected makes ADD, then GC by the library, which makes DEL for what is not valid, and GC of tsn-cni alone.
func (w *world) collected(ctx context.Context, library *libcni.CNIConfig, list *libcni.NetworkConfigList, pod *libcni.RuntimeConf) {
	w.t.Helper()
	if _, err := library.AddNetworkList(ctx, list, pod); err != nil {
		w.t.Fatal(err)
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: pod.ContainerID, IfName: pod.IfName}}}
	if err := library.GCNetworkList(ctx, list, valid); err != nil || len(w.attachments()) != 1 {
		w.t.Errorf("GC: %v, %v", err, w.attachments())
	}
	w.must(call{verb: "GC", stdin: w.conf(map[string]any{"cni.dev/valid-attachments": valid.ValidAttachments})})
	if len(w.attachments()) != 1 {
		w.t.Error("GC took back what is valid")
	}
	if err := library.GCNetworkList(ctx, list, &libcni.GCArgs{}); err != nil {
		w.t.Errorf("GC: %v", err)
	}
	w.nothingLeft()
}

// Each plugin behind tsn-cni, which makes the interface, and between the bridge and tsn-cni.
func TestChainsOfDebiansPlugins(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	ports := []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "udp"}}
	run := func(name string, needs changes, isOwnCheck bool, build func() []map[string]any) {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, node: w.node, far: w.far, runDir: w.runDir, stateDir: w.stateDir, daemon: w.daemon}
			needs.needsKernel(w)
			pod := &libcni.RuntimeConf{ContainerID: name, NetNS: path(namespace(t)), IfName: "net1"}
			pod.CapabilityArgs = map[string]any{"portMappings": ports} // only for portmap, which has the capability
			w.allVerbs(w.listOf(build()...), pod, isOwnCheck)
		})
	}
	own := func() map[string]any { return w.tsn(map[string]any{"ipam": w.ipam("10.99.1.0/24")}) }
	every := []map[string]any{own()}
	for name, other := range w.changes() {
		run(name, other, other.kind == "portmap", func() []map[string]any { return []map[string]any{own(), other.plugin()} })
		isOwnCheck := other.kind == "portmap" || other.kind == "sbr" || other.kind == "vrf"
		run("behind-bridge-"+name, other, isOwnCheck, func() []map[string]any {
			bridge := map[string]any{"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipam": w.ipam("10.98.1.0/24")}
			return []map[string]any{bridge, other.plugin(), w.tsn(nil)}
		})
		if other.device == "" {
			every = append(every, other.plugin())
		}
	}
	run("every", changes{}, true, func() []map[string]any { return every })
}

// Each IPAM plugin, with plugins behind tsn-cni.
func TestChainsOfDebiansIPAM(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	static := map[string]any{"type": "static", "addresses": []any{map[string]string{"address": "10.99.1.9/24", "gateway": "10.99.1.1"}},
		"routes": []any{map[string]string{"dst": "10.99.0.0/16", "gw": "10.99.1.1"}}}
	for kind, ipam := range map[string]map[string]any{"host-local": w.ipam("10.99.1.0/24"), "static": static, "dhcp": w.dhcpDaemon()} {
		t.Run(kind, func(t *testing.T) {
			w := &world{t: t, node: w.node, far: w.far, runDir: w.runDir, stateDir: w.stateDir, daemon: w.daemon}
			if kind == "dhcp" {
				for range 2 { // ADD comes twice, each time with another link
					(&lessor{}).serve(t, w.node, cnistate.HostInterface(kind, "net1"), net.IPv4(10, 99, 1, 50))
				}
			}
			pod := &libcni.RuntimeConf{ContainerID: kind, NetNS: path(namespace(t)), IfName: "net1"}
			list := w.listOf(w.tsn(map[string]any{"ipam": ipam}), w.changes()["tuning"].plugin(), w.changes()["sbr"].plugin())
			w.allVerbs(list, pod, false)
		})
	}
}
