// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func out(rules ...networking.NetworkPolicyEgressRule) networking.NetworkPolicySpec {
	return networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress}, Egress: rules}
}

func to(cidr string, except ...string) networking.NetworkPolicyEgressRule {
	return networking.NetworkPolicyEgressRule{To: []networking.NetworkPolicyPeer{{IPBlock: &networking.IPBlock{CIDR: cidr, Except: except}}}}
}

func with(rule networking.NetworkPolicyEgressRule, protocol *corev1.Protocol, port *intstr.IntOrString) networking.NetworkPolicyEgressRule {
	rule.Ports = []networking.NetworkPolicyPort{{Protocol: protocol, Port: port}}
	return rule
}

func TestWhatPoliciesLeave(t *testing.T) {
	udp, tcp, port := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(5000)
	byLabel := networking.NetworkPolicyEgressRule{To: []networking.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}
	in := networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress}}
	const everything = "everything"
	for name, c := range map[string]struct {
		specs   []networking.NetworkPolicySpec
		others  Others
		allowed string // everything, or prefixes
		ingress bool
	}{
		"none":                       {allowed: everything},
		"deny all":                   {specs: []networking.NetworkPolicySpec{out()}},
		"allow all":                  {specs: []networking.NetworkPolicySpec{out(networking.NetworkPolicyEgressRule{})}, allowed: everything},
		"all of UDP":                 {specs: []networking.NetworkPolicySpec{out(with(networking.NetworkPolicyEgressRule{}, &udp, nil))}, allowed: everything},
		"one port":                   {specs: []networking.NetworkPolicySpec{out(with(to("10.0.0.0/8"), &udp, &port))}},
		"TCP":                        {specs: []networking.NetworkPolicySpec{out(with(to("10.0.0.0/8"), &tcp, nil))}},
		"no protocol is TCP":         {specs: []networking.NetworkPolicySpec{out(with(to("10.0.0.0/8"), nil, nil))}},
		"labels":                     {specs: []networking.NetworkPolicySpec{out(byLabel)}},
		"a block":                    {specs: []networking.NetworkPolicySpec{out(byLabel, to("10.99.1.9/24"))}, allowed: "10.99.1.0/24"},
		"blocks of several policies": {specs: []networking.NetworkPolicySpec{out(to("fd99::/48")), out(to("10.99.1.0/24"), to("10.99.1.0/24")), in}, allowed: "10.99.1.0/24 fd99::/48", ingress: true},
		"a block with an exception":  {specs: []networking.NetworkPolicySpec{out(to("10.99.0.0/24", "10.99.0.64/26"))}, allowed: "10.99.0.0/26 10.99.0.128/25"},
		"all of it excepted":         {specs: []networking.NetworkPolicySpec{out(to("10.99.0.0/24", "10.0.0.0/8"))}},
		"an exception of no sense":   {specs: []networking.NetworkPolicySpec{out(to("10.99.0.0/24", "10.99"))}},
		"no block":                   {specs: []networking.NetworkPolicySpec{out(to("10.99"))}},
		"ingress":                    {specs: []networking.NetworkPolicySpec{in}, allowed: everything, ingress: true},
		"of this namespace":          {others: Others{Every: map[string][]string{"a": {"X y"}}}, ingress: true},
		"of the cluster":             {specs: []networking.NetworkPolicySpec{out(to("10.0.0.0/8"))}, others: Others{Every: map[string][]string{"": {"X y"}}}, ingress: true},
		"of another namespace":       {others: Others{Every: map[string][]string{"b": {"X y"}}}, allowed: everything},
	} {
		var policies []*networking.NetworkPolicy
		for _, spec := range c.specs {
			policies = append(policies, policy("a", "p", spec))
		}
		found := Restrict(pod("a", "talker", "kn1", nil), append(policies, policy("b", "p", out())), c.others)
		var texts []string
		for _, prefix := range found.EgressAllowed {
			texts = append(texts, prefix.String())
		}
		allowed := strings.Join(texts, " ")
		if !found.EgressRestricted {
			allowed += everything
		}
		if allowed != c.allowed || found.IngressBlocked != c.ingress || (found.Reason == "") != (allowed == everything && !c.ingress) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// A block less its exceptions holds exactly the addresses that are in the block and in no exception.
func TestExceptionsAreTakenOutWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	prefix := func(bitsMin int) netip.Prefix {
		address := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(4)), byte(random.IntN(256))})
		return netip.PrefixFrom(address, bitsMin+random.IntN(33-bitsMin)).Masked()
	}
	for range 500 {
		whole, exceptions := prefix(20), []netip.Prefix{prefix(22), prefix(22), prefix(22)}
		of := &networking.IPBlock{CIDR: whole.String()}
		for _, exception := range exceptions {
			of.Except = append(of.Except, exception.String())
		}
		found := block(of)
		for address := whole.Addr(); whole.Contains(address); address = address.Next() {
			want := true
			for _, exception := range exceptions {
				want = want && !exception.Contains(address)
			}
			is := 0
			for _, prefix := range found {
				if prefix.Contains(address) {
					is++
				}
			}
			if (is == 1) != want || is > 1 {
				t.Fatalf("%v less %v: %v has %s %d times", whole, exceptions, found, address, is)
			}
		}
	}
}

// What two restrictions leave together is in both, and nothing that is in both is lost.
func TestBothRestrictions(t *testing.T) {
	read := func(text string) Restriction {
		restriction := Restriction{EgressRestricted: !strings.HasPrefix(text, "all"), IngressBlocked: strings.HasSuffix(text, "closed"), Reason: text}
		for _, word := range strings.Fields(text) {
			if prefix, err := netip.ParsePrefix(word); err == nil {
				restriction.EgressAllowed = append(restriction.EgressAllowed, prefix)
			}
		}
		return restriction
	}
	for _, c := range []struct{ a, b, want string }{
		{"all", "all", "all"},
		{"all", "none", "none"},
		{"none closed", "all", "none closed"},
		{"10.0.0.0/8", "all closed", "10.0.0.0/8 closed"},
		{"10.0.0.0/8", "0.0.0.0/0", "10.0.0.0/8"},
		{"10.0.0.0/8 fd99::/48", "10.99.0.0/16 192.0.2.0/24 fd00::/8", "10.99.0.0/16 fd99::/48"},
		{"10.99.1.0/24", "10.99.2.0/24", "none"},
	} {
		for _, both := range []Restriction{read(c.a).And(read(c.b)), read(c.b).And(read(c.a))} {
			if !both.leavesAs(read(c.want)) {
				t.Errorf("%s, %s: %+v", c.a, c.b, both)
			}
		}
	}
	before := read("10.0.0.0/8")
	if !before.And(read("0.0.0.0/0 closed").And(read("0.0.0.0/0"))).IngressBlocked || !before.And(read("0.0.0.0/0")).Equal(before) {
		t.Error("one that takes nothing away changes it")
	}
	if reason := before.And(read("none")).Reason; reason != "none, 10.0.0.0/8" {
		t.Errorf("reason %q", reason)
	}
}

// A reason is as long as ktsnd keeps it, however many policies there are.
func TestAReasonIsBounded(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	every := make([]string, 5000)
	for i := range every {
		every[i] = strings.Repeat("x", 100)
	}
	reason := Restrict(pod, nil, Others{Every: map[string][]string{"a": every}}).Reason
	if len(reason) > 1000 || !strings.HasSuffix(reason, " and 4992 more") {
		t.Errorf("%d octets: %q", len(reason), reason)
	}
}
