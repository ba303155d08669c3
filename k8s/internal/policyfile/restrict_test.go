// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

func out(rules ...kinds.NetworkPolicyEgressRule) kinds.NetworkPolicySpec {
	return kinds.NetworkPolicySpec{PolicyTypes: []kinds.PolicyType{kinds.PolicyTypeEgress}, Egress: rules}
}

func to(cidr string, except ...string) kinds.NetworkPolicyEgressRule {
	return kinds.NetworkPolicyEgressRule{To: []kinds.NetworkPolicyPeer{{IPBlock: &kinds.IPBlock{CIDR: cidr, Except: except}}}}
}

func with(rule kinds.NetworkPolicyEgressRule, protocol *kinds.Protocol, port *intstr.IntOrString) kinds.NetworkPolicyEgressRule {
	rule.Ports = []kinds.NetworkPolicyPort{{Protocol: protocol, Port: port}}
	return rule
}

func TestWhatPoliciesLeave(t *testing.T) {
	udp, tcp, port := kinds.ProtocolUDP, kinds.ProtocolTCP, intstr.FromInt32(5000)
	byLabel := kinds.NetworkPolicyEgressRule{To: []kinds.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}
	in := kinds.NetworkPolicySpec{PolicyTypes: []kinds.PolicyType{kinds.PolicyTypeIngress}}
	const everything = "everything"
	for name, c := range map[string]struct {
		specs   []kinds.NetworkPolicySpec
		others  Others
		allowed string // everything, or prefixes
		ingress bool
	}{
		"none":                       {allowed: everything},
		"deny all":                   {specs: []kinds.NetworkPolicySpec{out()}},
		"allow all":                  {specs: []kinds.NetworkPolicySpec{out(kinds.NetworkPolicyEgressRule{})}, allowed: everything},
		"all of UDP":                 {specs: []kinds.NetworkPolicySpec{out(with(kinds.NetworkPolicyEgressRule{}, &udp, nil))}, allowed: everything},
		"one port":                   {specs: []kinds.NetworkPolicySpec{out(with(to("10.0.0.0/8"), &udp, &port))}},
		"TCP":                        {specs: []kinds.NetworkPolicySpec{out(with(to("10.0.0.0/8"), &tcp, nil))}},
		"no protocol is TCP":         {specs: []kinds.NetworkPolicySpec{out(with(to("10.0.0.0/8"), nil, nil))}},
		"labels":                     {specs: []kinds.NetworkPolicySpec{out(byLabel)}},
		"a block":                    {specs: []kinds.NetworkPolicySpec{out(byLabel, to("10.99.1.9/24"))}, allowed: "10.99.1.0/24"},
		"blocks of several policies": {specs: []kinds.NetworkPolicySpec{out(to("fd99::/48")), out(to("10.99.1.0/24"), to("10.99.1.0/24")), in}, allowed: "10.99.1.0/24 fd99::/48", ingress: true},
		"a block with an exception":  {specs: []kinds.NetworkPolicySpec{out(to("10.99.0.0/24", "10.99.0.64/26"))}, allowed: "10.99.0.0/26 10.99.0.128/25"},
		"all of it excepted":         {specs: []kinds.NetworkPolicySpec{out(to("10.99.0.0/24", "10.0.0.0/8"))}},
		"an exception of no sense":   {specs: []kinds.NetworkPolicySpec{out(to("10.99.0.0/24", "10.99"))}},
		"no block":                   {specs: []kinds.NetworkPolicySpec{out(to("10.99"))}},
		"ingress":                    {specs: []kinds.NetworkPolicySpec{in}, allowed: everything, ingress: true},
		"of this namespace":          {others: Others{Every: map[string][]string{"a": {"X y"}}}, ingress: true},
		"of the cluster":             {specs: []kinds.NetworkPolicySpec{out(to("10.0.0.0/8"))}, others: Others{Every: map[string][]string{"": {"X y"}}}, ingress: true},
		"of another namespace":       {others: Others{Every: map[string][]string{"b": {"X y"}}}, allowed: everything},
	} {
		var policies []*kinds.NetworkPolicy
		for _, spec := range c.specs {
			policies = append(policies, policy("a", "p", spec))
		}
		found := Restrict(pod("a", "talker", "kn1", nil), append(policies, policy("b", "p", out())), c.others)
		var trimmed []*kinds.NetworkPolicy
		for _, one := range policies {
			kept := Trimmed(one)
			again := Trimmed(&kept)
			if !reflect.DeepEqual(kept, again) {
				t.Errorf("%s: trimmed twice it is another: %+v, %+v", name, kept, again)
			}
			trimmed = append(trimmed, &kept)
		}
		if left := Restrict(pod("a", "talker", "kn1", nil), trimmed, c.others); !left.Equal(found) {
			t.Errorf("%s: trimmed it leaves %+v, not %+v", name, left, found)
		}
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
		of := &kinds.IPBlock{CIDR: whole.String()}
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
	pod := &kinds.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	every := make([]string, 5000)
	for i := range every {
		every[i] = strings.Repeat("x", 100)
	}
	reason := Restrict(pod, nil, Others{Every: map[string][]string{"a": every}}).Reason
	if len(reason) > 1000 || !strings.HasSuffix(reason, " and 4992 more") {
		t.Errorf("%d octets: %q", len(reason), reason)
	}
}
