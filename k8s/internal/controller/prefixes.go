// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Prefixes says how the TSN network is divided among the nodes.
type Prefixes struct {
	// CIDRs of the network; none: nothing is assigned.
	CIDRs []netip.Prefix
	// IPv4, IPv6: lengths of a node's prefixes.
	IPv4, IPv6 int
}

// Check the flags.
func (p Prefixes) Check() error {
	for _, cidr := range p.CIDRs {
		length, flag := p.lengthOf(cidr), "--prefix-length-ipv4"
		if cidr.Addr().Is6() {
			flag = "--prefix-length-ipv6"
		}
		if length < cidr.Bits() || length > cidr.Addr().BitLen()-2 {
			return fmt.Errorf("%s: found %d, expected %d to %d for %s", flag, length, cidr.Bits(), cidr.Addr().BitLen()-2, cidr)
		}
	}
	return nil
}

func (p Prefixes) lengthOf(cidr netip.Prefix) int {
	if cidr.Addr().Is4() {
		return p.IPv4
	}
	return p.IPv6
}

// missing is true for a Node without prefixes.
func missing(node *corev1.Node) bool {
	return node.Annotations[overlaynet.AnnotationPrefixes] == "" && node.DeletionTimestamp == nil
}

// oldestFirst sorts Nodes, as the order of an informer's list is random.
func oldestFirst(nodes []*corev1.Node) []*corev1.Node {
	return slices.SortedFunc(slices.Values(nodes), v1alpha1.ByAge)
}

// Doubled is a Node with prefixes that an older Node has: the other nodes send their frames to the older one.
type Doubled struct {
	Node *corev1.Node
	// Kept are its own prefixes, Lost those that the older Node has.
	Kept, Lost []netip.Prefix
	// Older is the Node that has the first lost prefix.
	Older string
}

// FindDoubled looks for prefixes that an administrator gave to two Nodes.
func FindDoubled(nodes []*corev1.Node) []Doubled {
	type claim struct {
		node   string
		prefix netip.Prefix
	}
	var claims []claim
	var found []Doubled
	for _, node := range oldestFirst(nodes) {
		prefixes, err := overlaynet.ParsePrefixes(overlaynet.AnnotationPrefixes, node.Annotations[overlaynet.AnnotationPrefixes])
		if err != nil || node.DeletionTimestamp != nil {
			continue
		}
		one := Doubled{Node: node}
		for _, prefix := range prefixes {
			index := slices.IndexFunc(claims, func(c claim) bool { return c.prefix.Overlaps(prefix) })
			if index < 0 {
				one.Kept = append(one.Kept, prefix)
				continue
			}
			if one.Older == "" {
				one.Older = claims[index].node
			}
			one.Lost = append(one.Lost, prefix)
		}
		// Afterwards: a node's own prefixes may overlap.
		for _, prefix := range one.Kept {
			claims = append(claims, claim{node.Name, prefix})
		}
		if len(one.Lost) > 0 {
			found = append(found, one)
		}
	}
	return found
}

// Used returns the prefixes that Nodes were given. The claims of agents do not count: one node alone could use all prefixes up.
func Used(nodes []*corev1.Node) []netip.Prefix {
	var used []netip.Prefix
	for _, node := range nodes {
		if prefixes, err := overlaynet.ParsePrefixes(overlaynet.AnnotationPrefixes, node.Annotations[overlaynet.AnnotationPrefixes]); err == nil {
			used = append(used, prefixes...)
		}
	}
	return used
}

// Assign finds the lowest free prefix in each of the network's prefixes of which a node keeps none.
func (p Prefixes) Assign(used, kept []netip.Prefix) ([]netip.Prefix, error) {
	found := slices.Clone(kept)
	for _, cidr := range p.CIDRs {
		if slices.ContainsFunc(kept, cidr.Overlaps) {
			continue
		}
		prefix, ok := lowestFree(cidr, p.lengthOf(cidr), used)
		if !ok {
			return nil, fmt.Errorf("--tsn-cidr %s has no /%d left: %d are in use; make it larger, or the nodes' prefixes smaller",
				cidr, p.lengthOf(cidr), len(used))
		}
		found = append(found, prefix)
	}
	return found, nil
}

// lowestFree steps over what is used: at most one step more than there are used ones.
func lowestFree(cidr netip.Prefix, length int, used []netip.Prefix) (netip.Prefix, bool) {
	candidate := netip.PrefixFrom(cidr.Addr(), length)
	for candidate.IsValid() && cidr.Contains(candidate.Addr()) {
		index := slices.IndexFunc(used, candidate.Overlaps)
		if index < 0 {
			return candidate, true
		}
		// Behind the larger of the two.
		candidate = following(candidate.Addr(), min(length, used[index].Bits()), length)
	}
	return netip.Prefix{}, false
}

// following returns the prefix of `length` behind the prefix of `step` bits at an address. It is invalid behind the last address.
func following(address netip.Addr, step, length int) netip.Prefix {
	last := netip.PrefixFrom(address, step).Masked().Addr().AsSlice()
	for bit := step; bit < address.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return netip.PrefixFrom(end.Next(), length)
}
