// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// prefixesMax is how many prefixes ktsnd takes for one attachment.
const prefixesMax = 4096

// Restriction is what network policies leave of one pod's short cuts. The zero value: everything.
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
	return r.EgressRestricted == other.EgressRestricted && slices.Equal(r.EgressAllowed, other.EgressAllowed) &&
		r.IngressBlocked == other.IngressBlocked && r.Reason == other.Reason
}

// Restrict says what the policies leave of a pod's short cuts. Of what an egress policy allows only address blocks for all UDP ports
// can be expressed; what it allows by labels or for some ports is left out. An ingress policy that selects the pod closes the short
// way in, whatever it allows: the kernel's way has an engine that knows.
func Restrict(pod *corev1.Pod, policies []*networking.NetworkPolicy, others Others) Restriction {
	selecting := selecting(policies, pod)
	egress, ingress, every := names(selecting, isEgress), names(selecting, isIngress), others.about(pod.Namespace)
	if len(every) > 0 {
		return Restriction{
			EgressRestricted: true, IngressBlocked: true,
			Reason: strings.Join(slices.Concat(every, reasons(egress, ingress)), ", "),
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
	restriction.Reason = strings.Join(reasons(egress, ingress), ", ")
	return restriction
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
func allowed(policies []*networking.NetworkPolicy) ([]netip.Prefix, bool) {
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
				if peer.IPBlock != nil && peer.PodSelector == nil && peer.NamespaceSelector == nil {
					found = append(found, block(peer.IPBlock)...)
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b netip.Prefix) int {
		if order := a.Addr().Compare(b.Addr()); order != 0 {
			return order
		}
		return a.Bits() - b.Bits()
	})
	if found = slices.Compact(found); len(found) > prefixesMax {
		return nil, false
	}
	return found, false
}

// forAllUDP: whether a rule with these ports is about every UDP port. A port without a protocol is one of TCP.
func forAllUDP(ports []networking.NetworkPolicyPort) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(port networking.NetworkPolicyPort) bool {
		return port.Protocol != nil && *port.Protocol == corev1.ProtocolUDP && port.Port == nil
	})
}

// block is an address block less its exceptions; nothing where a part of it cannot be read.
func block(of *networking.IPBlock) []netip.Prefix {
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
