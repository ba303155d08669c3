// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

func TestARangeThatIsSomebodyElsesIsRefused(t *testing.T) {
	node := &kinds.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "kn1"},
		Spec:       kinds.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd01:0:0:1::/64"}},
		Status: kinds.NodeStatus{Addresses: []kinds.NodeAddress{
			{Type: kinds.NodeInternalIP, Address: "192.0.2.1"}, {Type: kinds.NodeHostName, Address: "kn1"},
		}},
	}
	claims := append(ClaimsOf(node), HostClaim("the API server's service", netip.MustParseAddr("10.96.0.1")))
	for text, word := range map[string]string{
		"10.244.0.0/16":   "10.244.1.0/24 (pods of node kn1 on the default network)",
		"10.244.1.128/25": "10.244.1.0/24 (pods of node kn1",
		"fd01::/48":       "fd01:0:0:1::/64 (pods of node kn1",
		"192.0.2.0/24":    "192.0.2.1/32 (InternalIP of node kn1)",
		"10.96.0.0/12":    "10.96.0.1/32 (the API server's service)",
		"10.0.0.0/8":      "10.244.1.0/24 (pods of node kn1 on the default network), 10.96.0.1/32",
	} {
		if err := CheckFree(prefixes("10.99.0.0/24", text), claims); err == nil || !strings.Contains(err.Error(), word) ||
			!strings.HasPrefix(err.Error(), "--tsn-cidr: found 10.99.0.0/24,"+text) || !strings.Contains(err.Error(), "network.cidrs") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckFree(prefixes("10.99.0.0/16", "fd99::/48"), claims); err != nil {
		t.Errorf("free: %v", err)
	}
	old := &kinds.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: kinds.NodeSpec{PodCIDR: "10.99.7.0/24"}}
	if err := CheckFree(prefixes("10.99.0.0/16"), ClaimsOf(old)); err == nil {
		t.Error("the range of a Node that has only the older field")
	}
}

func TestAnotherFamilysEndIsTold(t *testing.T) {
	others := []Member{member("six", 1, "2001:db8::2", "10.99.1.0/24"), member("four", 1, "192.0.2.2", "10.99.2.0/24")}
	reachable, conflicts := Reachable(netip.MustParseAddr("192.0.2.1"), others)
	if len(reachable) != 1 || reachable[0].Node != "four" {
		t.Errorf("%+v", reachable)
	}
	if len(conflicts) != 1 || !strings.Contains(conflicts[0], "node six: its end of the tunnel, 2001:db8::2, is of another address family") {
		t.Errorf("%v", conflicts)
	}
}
