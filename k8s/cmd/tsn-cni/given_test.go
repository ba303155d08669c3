// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Withheld addresses of an attachment.
func (w *world) withheld(name string) []string {
	w.t.Helper()
	reply, err := w.api().List(within(w.t, 10*time.Second), &nodeapi.ListRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range reply.GetAttachments() {
		if nodeapi.ReadAttachment(one.GetAttachment()).Name == name {
			return one.GetWithheld()
		}
	}
	w.t.Fatalf("no attachment %s", name)
	return nil
}

// IPAM's answer is given; what the pod's root adds afterwards is not.
func TestAddressesOfIPAMAreGiven(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	fields := map[string]any{"ipam": w.ipam("10.99.1.0/24", "fd99:0:0:1::/64")}
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0", stdin: w.conf(fields)}
	result := parsed(t, w.must(c))
	name := cnistate.AttachmentName("c1", "tsn0")
	if given := string(w.attachments()[name].Addresses); given != `["10.99.1.2","fd99:0:0:1::2"]` {
		t.Errorf("given: %q", given)
	}
	ip(t, "-n", pod, "address", "add", "10.99.1.77/32", "dev", "tsn0")
	eventually.Holds(t, "the other address is withheld", func() bool { return slices.Equal(w.withheld(name), []string{"10.99.1.77"}) })
	fields["prevResult"] = result
	c.verb, c.stdin = "CHECK", w.conf(fields)
	w.must(c)
	// The network's own word goes before IPAM's.
	other := namespace(t)
	delete(fields, "prevResult")
	fields["addresses"] = "interface"
	w.must(call{verb: "ADD", container: "c2", netns: path(other), ifName: "tsn0", stdin: w.conf(fields)})
	if given := string(w.attachments()[cnistate.AttachmentName("c2", "tsn0")].Addresses); given != `"interface"` {
		t.Errorf("given: %q", given)
	}
	for _, container := range []string{"c1", "c2"} {
		w.must(call{verb: "DEL", container: container, netns: path(pod), ifName: "tsn0", stdin: w.conf(nil)})
	}
	w.nothingLeft()
}

// Of another plugin's result only what is said of this interface.
func TestAddressesOfAnotherPluginsResult(t *testing.T) {
	const interfaces = `"interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/p"}, {"name": "eth1", "sandbox": "/run/netns/p"}]`
	for _, row := range []struct {
		ips      string
		expected []string
	}{
		{`{"interface": 1, "address": "10.1.0.5/24"}, {"interface": 1, "address": "fd00::5/64"}`, []string{"10.1.0.5", "fd00::5"}},
		{`{"interface": 2, "address": "10.1.0.6/24"}, {"interface": 0, "address": "10.1.0.1/24"}`, nil},
		{`{"address": "10.1.0.5/24"}, {"interface": 2, "address": "10.1.0.6/24"}`, []string{"10.1.0.5"}},
		{`{"interface": 7, "address": "10.1.0.6/24"}`, nil},
		{`{"interface": 1, "address": "10.1.0.5/24"}, {"interface": 1, "address": "10.1.0.5/32"}`, []string{"10.1.0.5"}},
		{``, nil},
	} {
		previous := `{"cniVersion": "1.0.0", ` + interfaces + `, "ips": [` + row.ips + `]}`
		conf := &cniconf.Conf{CNIVersion: "1.0.0", PrevResult: json.RawMessage(previous)}
		a := &addition{args: &skel.CmdArgs{IfName: "eth0"}, conf: conf}
		if !conf.IsChained() {
			t.Fatal("the configuration is not chained")
		}
		given, err := a.given()
		if err != nil || !slices.Equal(given, row.expected) {
			t.Errorf("%s: %q, %v; expected %q", row.ips, given, err, row.expected)
		}
	}
}

// A pod's wish never replaces the network's address where IPAM is static, and changes nothing when it is refused.
func TestStaticAddressIsTheNetworks(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	fields := map[string]any{"ipam": map[string]any{"type": "static", "addresses": []any{map[string]string{"address": "10.99.1.5/24"}}}}
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "tsn0"}
	for _, wish := range []map[string]any{{"ips": []string{"10.99.1.77/24"}}, {"IPS": []string{"10.99.1.77/24"}}} {
		fields["args"] = map[string]any{"cni": wish}
		c.stdin = w.conf(fields)
		w.refused(c, types.ErrInvalidNetworkConfig, "args.cni.", "a pod may not choose its address from IPAM static")
	}
	delete(fields, "args")
	c.stdin = w.conf(fields)
	for _, c.args = range []string{"IgnoreUnknown=1;IP=10.99.1.77/24", "GATEWAY=10.99.1.1"} {
		w.refused(c, types.ErrInvalidNetworkConfig, "CNI_ARGS.")
	}
	w.nothingLeft()
	c.args = ""
	fields["runtimeConfig"] = map[string]any{"ips": []string{"10.99.1.77/24"}}
	for grant, expected := range map[bool]string{false: `["10.99.1.5"]`, true: `["10.99.1.77"]`} {
		fields["capabilities"] = map[string]bool{"ips": grant}
		c.verb, c.stdin = "ADD", w.conf(fields)
		w.must(c)
		if given := string(w.attachments()["c1/tsn0"].Addresses); given != expected {
			t.Errorf("capability %v: given %q, expected %s", grant, given, expected)
		}
		c.verb = "DEL"
		w.must(c)
	}
	w.nothingLeft()
}
