// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// prefixesMax is how many prefixes ktsnd takes for one attachment, reasonMax how many octets of a reason it surely keeps.
const (
	prefixesMax = 4096
	reasonMax   = 900
)

// Restriction is what network policies leave of one pod's uplink egress and ingress fast path. The zero value: everything.
type Restriction struct {
	// EgressRestricted: what leaves past the packet filter may go to EgressAllowed only.
	EgressRestricted bool
	EgressAllowed    []netip.Prefix
	// IngressBlocked: nothing may come in past it.
	IngressBlocked bool
	// Reason names the policies.
	Reason string
}

// Equal: whether both leave the same, for the same reason.
func (r Restriction) Equal(other Restriction) bool {
	return r.leavesAs(other) && r.Reason == other.Reason
}

// leavesAs: whether both leave the same.
func (r Restriction) leavesAs(other Restriction) bool {
	return r.EgressRestricted == other.EgressRestricted && slices.Equal(r.EgressAllowed, other.EgressAllowed) &&
		r.IngressBlocked == other.IngressBlocked
}

// And is a restriction that leaves only what both leave. It is `r` itself where `other` takes nothing more away.
func (r Restriction) And(other Restriction) Restriction {
	both := Restriction{
		EgressRestricted: r.EgressRestricted || other.EgressRestricted,
		IngressBlocked:   r.IngressBlocked || other.IngressBlocked,
	}
	switch {
	case r.EgressRestricted && other.EgressRestricted:
		both.EgressAllowed = common(r.EgressAllowed, other.EgressAllowed)
	case r.EgressRestricted:
		both.EgressAllowed = r.EgressAllowed
	default:
		both.EgressAllowed = other.EgressAllowed
	}
	if both.leavesAs(r) {
		return r
	}
	both.Reason = other.Reason
	if r.Reason != "" && r.Reason != other.Reason {
		both.Reason = join([]string{other.Reason, r.Reason})
	}
	return both
}

// common are the addresses that are in both, as prefixes; nothing where these are too many for ktsnd.
func common(a, b []netip.Prefix) []netip.Prefix {
	found := sorted(append(within(a, b), within(b, a)...))
	if len(found) > prefixesMax {
		return nil
	}
	return found
}

// within are those prefixes that are parts of one of the others.
func within(prefixes, others []netip.Prefix) []netip.Prefix {
	all := map[netip.Prefix]bool{}
	for _, other := range others {
		all[other] = true
	}
	var found []netip.Prefix
	for _, prefix := range prefixes {
		for bits := prefix.Bits(); bits >= 0; bits-- {
			if whole, err := prefix.Addr().Prefix(bits); err == nil && all[whole] {
				found = append(found, prefix)
				break
			}
		}
	}
	return found
}

// sorted puts prefixes in order, each once.
func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if order := a.Addr().Compare(b.Addr()); order != 0 {
			return order
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(prefixes)
}

// Restrict returns what the policies leave of a pod's uplink egress and ingress fast path. Of what an egress policy allows, only
// address blocks for all UDP ports can be expressed; what it allows by labels or for some ports is left out. An ingress policy that selects the pod closes the
// ingress fast path, whatever the policy allows: on the kernel's path an engine enforces it.
func Restrict(pod *kinds.Pod, policies []*kinds.NetworkPolicy, others Others) Restriction {
	selecting := selecting(policies, pod)
	egress, ingress, every := names(selecting, isEgress), names(selecting, isIngress), others.about(pod.Namespace)
	if len(every) > 0 {
		return Restriction{
			EgressRestricted: true, IngressBlocked: true,
			Reason: join(slices.Concat(every, reasons(egress, ingress))),
		}
	}
	restriction := Restriction{IngressBlocked: len(ingress) > 0}
	if len(egress) > 0 {
		var isOpen bool
		restriction.EgressAllowed, isOpen = allowed(selecting)
		restriction.EgressRestricted = !isOpen
	}
	if !restriction.EgressRestricted {
		egress = nil
	}
	restriction.Reason = join(reasons(egress, ingress))
	return restriction
}

// join makes one reason of several, of as many as ktsnd keeps.
func join(reasons []string) string {
	var joined strings.Builder
	for i, reason := range reasons {
		if i > 0 && joined.Len()+len(reason) > reasonMax {
			fmt.Fprintf(&joined, " and %d more", len(reasons)-i)
			break
		}
		if i > 0 {
			joined.WriteString(", ")
		}
		joined.WriteString(reason)
	}
	return joined.String()
}

func reasons(egress, ingress []string) []string {
	var found []string
	for _, name := range egress {
		found = append(found, "egress NetworkPolicy "+name)
	}
	for _, name := range ingress {
		found = append(found, "ingress NetworkPolicy "+name)
	}
	return found
}

// allowed is what egress policies allow together, as far as it can be expressed: address blocks, or (true) everything.
func allowed(policies []*kinds.NetworkPolicy) ([]netip.Prefix, bool) {
	var found []netip.Prefix
	for _, policy := range policies {
		if !isEgress(policy) {
			continue
		}
		for _, rule := range policy.Spec.Egress {
			if !forAllUDP(rule.Ports) {
				continue
			}
			if len(rule.To) == 0 {
				return nil, true
			}
			for _, peer := range rule.To {
				if isBlock(peer) {
					found = append(found, block(peer.IPBlock)...)
				}
			}
		}
	}
	if found = sorted(found); len(found) > prefixesMax {
		return nil, false
	}
	return found, false
}

// isBlock: whether a peer is an address block alone.
func isBlock(peer kinds.NetworkPolicyPeer) bool {
	return peer.IPBlock != nil && peer.PodSelector == nil && peer.NamespaceSelector == nil
}

// forAllUDP: whether a rule with these ports is about every UDP port. A port without a protocol is one of TCP.
func forAllUDP(ports []kinds.NetworkPolicyPort) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(port kinds.NetworkPolicyPort) bool {
		return port.Protocol != nil && *port.Protocol == kinds.ProtocolUDP && port.Port == nil
	})
}

// block is an address block less its exceptions; nothing where a part of it cannot be read.
func block(of *kinds.IPBlock) []netip.Prefix {
	whole, err := netip.ParsePrefix(of.CIDR)
	if err != nil {
		return nil
	}
	found := []netip.Prefix{whole.Masked()}
	for _, text := range of.Except {
		exception, err := netip.ParsePrefix(text)
		if err != nil {
			return nil
		}
		var rest []netip.Prefix
		for _, prefix := range found {
			rest = append(rest, without(prefix, exception.Masked())...)
		}
		if found = rest; len(found) > prefixesMax {
			return nil
		}
	}
	return found
}

// without is a prefix less another one.
func without(prefix, exception netip.Prefix) []netip.Prefix {
	if !prefix.Overlaps(exception) {
		return []netip.Prefix{prefix}
	}
	var found []netip.Prefix
	for prefix.Bits() < exception.Bits() {
		// The half with the exception is looked at again, the other one stays.
		near, err := exception.Addr().Prefix(prefix.Bits() + 1)
		if err != nil {
			return nil
		}
		found = append(found, sibling(near))
		prefix = near
	}
	return found
}

// sibling is the other half of the prefix that is one bit shorter.
func sibling(prefix netip.Prefix) netip.Prefix {
	octets := prefix.Addr().AsSlice()
	bit := prefix.Bits() - 1
	octets[bit/8] ^= 0x80 >> (bit % 8)
	address, _ := netip.AddrFromSlice(octets)
	return netip.PrefixFrom(address, prefix.Bits())
}
