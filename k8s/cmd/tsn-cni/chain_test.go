// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// The library that containerd and Multus run plugins by; its processes start on the node.
type onNode struct {
	*invoke.DefaultExec
	node string
}

func (o *onNode) ExecPlugin(ctx context.Context, program string, stdin []byte, environment []string) ([]byte, error) {
	wrapped, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, wrapped, "--net="+path(o.node), program)
	command.Env, command.Stdin = environment, strings.NewReader(string(stdin))
	out, err := command.Output()
	if err != nil {
		return nil, &pluginError{string(out)}
	}
	return out, nil
}

type pluginError struct{ text string }

func (e *pluginError) Error() string { return e.text }

func (w *world) library() *libcni.CNIConfig {
	w.t.Helper()
	return libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(plugin), debianPlugins}, w.t.TempDir(),
		&onNode{DefaultExec: &invoke.DefaultExec{RawExec: &invoke.RawExec{}}, node: w.node})
}

// Bridge, portmap and tsn-cni, as a cluster's default network; Debian's plugins speak 1.0.0.
func (w *world) conflist(own map[string]any) *libcni.NetworkConfigList {
	w.t.Helper()
	tsn := map[string]any{"type": "tsn-cni", "run_dir": w.runDir, "state_dir": w.stateDir, "uplink": "up0", "destinations": []string{"10.98.0.0/16"},
		"capabilities": map[string]bool{cniconf.AnnotationsCapability: true}}
	for key, value := range own {
		tsn[key] = value
	}
	ipam := w.ipam("10.98.1.0/24")
	ipam["routes"] = []any{map[string]string{"dst": "0.0.0.0/0"}}
	content, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "cbr0", "plugins": []any{
		map[string]any{"type": "bridge", "bridge": "cbr0", "isGateway": true, "ipam": ipam},
		map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		tsn,
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(content)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestChainBehindBridgeAndPortmap(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	library, list := w.library(), w.conflist(nil)
	ctx := within(t, time.Minute)
	ports := []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "udp"}}
	asks := map[string]any{cniconf.AnnotationsCapability: map[string]string{cniconf.AskAnnotation: "true"}}
	asking := &libcni.RuntimeConf{ContainerID: "c1", NetNS: path(namespace(t)), IfName: "eth0", CapabilityArgs: asks}
	silent := &libcni.RuntimeConf{ContainerID: "c2", NetNS: path(namespace(t)), IfName: "eth0"}
	// Debian's portmap does not find its own rules again: this one is not checked.
	mapped := &libcni.RuntimeConf{ContainerID: "c3", NetNS: path(namespace(t)), IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": ports}}
	for _, pod := range []*libcni.RuntimeConf{asking, silent, mapped} {
		printed, err := library.AddNetworkList(ctx, list, pod)
		if err != nil {
			t.Fatal(err)
		}
		result, err := types100.GetResult(printed)
		if err != nil || len(result.IPs) != 1 || !strings.HasPrefix(result.IPs[0].Address.String(), "10.98.1.") {
			t.Errorf("the bridge's result did not come through: %v, %v", result, err)
		}
		if pod == mapped {
			continue
		}
		if err := library.CheckNetworkList(ctx, list, pod); err != nil {
			t.Errorf("%s: %v", pod.ContainerID, err)
		}
	}
	found := w.attachments()
	if len(found) != 1 || found["c1/eth0"].Interface != "eth0" {
		t.Errorf("%v", found)
	}
	if given := string(found["c1/eth0"].Addresses); !strings.HasPrefix(given, `["10.98.1.`) || strings.Contains(given, ",") {
		t.Errorf("given: %q, expected the bridge's answer", given)
	}
	w.detach("c1/eth0")
	if err := library.CheckNetworkList(ctx, list, asking); err == nil || !strings.Contains(err.Error(), "no attachment") {
		t.Errorf("%v", err)
	}
	for _, pod := range []*libcni.RuntimeConf{asking, silent, silent, mapped} {
		if err := library.DelNetworkList(ctx, list, pod); err != nil {
			t.Errorf("%s: %v", pod.ContainerID, err)
		}
	}
	w.nothingLeft()
}

// A pod that asks for nothing needs no ktsnd.
func TestChainWithoutDaemon(t *testing.T) {
	w := newWorld(t)
	library, list := w.library(), w.conflist(nil)
	ctx := within(t, time.Minute)
	silent := &libcni.RuntimeConf{ContainerID: "c2", NetNS: path(namespace(t)), IfName: "eth0"}
	if _, err := library.AddNetworkList(ctx, list, silent); err != nil {
		t.Fatal(err)
	}
	asking := &libcni.RuntimeConf{ContainerID: "c1", NetNS: path(namespace(t)), IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}, {cniconf.AskArgument, "true"}}}
	if _, err := library.AddNetworkList(ctx, list, asking); err == nil || !strings.Contains(err.Error(), "ktsnd is not running") {
		t.Errorf("%v", err)
	}
	for _, pod := range []*libcni.RuntimeConf{silent, asking} {
		if err := library.DelNetworkList(ctx, list, pod); err != nil {
			t.Errorf("%s: %v", pod.ContainerID, err)
		}
	}
	w.nothingLeft()
}

func TestChainRefusesWhatBelongsToAnInterfaceOfItsOwn(t *testing.T) {
	w := newWorld(t)
	library, list := w.library(), w.conflist(map[string]any{"mtu": 1400, "attach": "all"})
	ctx := within(t, time.Minute)
	pod := &libcni.RuntimeConf{ContainerID: "c1", NetNS: path(namespace(t)), IfName: "eth0"}
	if _, err := library.AddNetworkList(ctx, list, pod); err == nil || !strings.Contains(err.Error(), "mtu: has no meaning behind another plugin") {
		t.Errorf("%v", err)
	}
	if err := library.DelNetworkList(ctx, list, pod); err != nil {
		t.Error(err)
	}
	w.nothingLeft()
}

// As Multus calls it: device and arguments come in, DEL gets a configuration without the plugin's fields.
func TestDelegateOfAMetaPlugin(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	w.writeNode(map[string]any{"ready": true, "prefixes": []string{"10.99.7.0/24", "fd99:0:0:7::/64"}, "cidrs": []string{"10.99.0.0/16", "fd99::/48"},
		"mtu": 1390, "vxlan_device": "tsnvx", "uplink": "up0", "capacity": 2})
	ip(t, "-n", w.node, "link", "add", "tsnvx", "mtu", "1380", "type", "vxlan", "id", "1588", "dstport", "4789", "local", "192.168.50.1", "dev", "up0", "nolearning")
	ip(t, "-n", w.node, "link", "set", "tsnvx", "up")
	pod := namespace(t)
	leases := filepath.Join(w.stateDir, "../leases")
	stdin := w.conf(map[string]any{"cniVersion": "0.3.1", "uplink": nil, "ipam": map[string]any{"type": "host-local", "dataDir": leases},
		"deviceID": "tsn-3", "pciBusID": "tsn-3", "args": map[string]any{"cni": map[string]any{"late": "drop", "mac": "02:00:00:00:00:09"}}})
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "net1", stdin: stdin,
		args: "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=talker;K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=c1"}
	w.writePolicies(`{"synced":true,"namespaces":{},"pods":{"default/talker":{"uid":"u1","policies":[]}}}`)
	w.must(c)
	attached := w.attachments()["c1/net1"]
	if attached == nil || attached.Overlay.VXLAN == nil || attached.Overlay.VXLAN.LearnFrom != "tsnvx" || attached.Late != "drop" || attached.Uplink != "up0" {
		t.Errorf("%v", attached)
	}
	shown := ip(t, "-n", pod, "address", "show", "net1") + ip(t, "-n", pod, "route") + ip(t, "-n", pod, "-6", "route")
	for _, word := range []string{"mtu 1380", "10.99.7.2/32", "02:00:00:00:00:09", "10.99.0.0/16 via 169.254.1.1", "fd99::/48 via fe80::1"} {
		if !strings.Contains(shown, word) {
			t.Errorf("no %q in %s", word, shown)
		}
	}
	if strings.Contains(shown, "10.99.7.0/24 via") {
		t.Errorf("a prefix within another one: %s", shown)
	}
	w.must(call{verb: "DEL", container: "c1", netns: path(pod), ifName: "net1", stdin: `{"cniVersion":"0.3.1","name":"tsn","type":"tsn-cni"}`})
	ip(t, "-n", w.node, "link", "del", "tsnvx")
	w.nothingLeft()
}
