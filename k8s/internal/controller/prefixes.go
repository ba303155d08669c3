// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

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

// Missing are the Nodes without prefixes, oldest first, so that the order of a list decides nothing.
func Missing(nodes []*corev1.Node) []*corev1.Node {
	var missing []*corev1.Node
	for _, node := range nodes {
		if node.Annotations[overlaynet.AnnotationPrefixes] == "" && node.DeletionTimestamp == nil {
			missing = append(missing, node)
		}
	}
	slices.SortFunc(missing, func(a, b *corev1.Node) int {
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	return missing
}

// Used are the prefixes that Nodes were given. What an agent says that its node has does not count: one node alone could use all up.
func Used(nodes []*corev1.Node) []netip.Prefix {
	var used []netip.Prefix
	for _, node := range nodes {
		if prefixes, err := overlaynet.ParsePrefixes(overlaynet.AnnotationPrefixes, node.Annotations[overlaynet.AnnotationPrefixes]); err == nil {
			used = append(used, prefixes...)
		}
	}
	return used
}

// Assign finds the lowest free prefix in each of the network's prefixes.
func (p Prefixes) Assign(used []netip.Prefix) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for _, cidr := range p.CIDRs {
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

// following is the first prefix of `length` behind the one of `step` bits at an address; the zero prefix behind the last.
func following(address netip.Addr, step, length int) netip.Prefix {
	bits := address.BitLen()
	octets := netip.PrefixFrom(address, step).Masked().Addr().As16()
	shift := uint(bits - step)
	high, low := binary.BigEndian.Uint64(octets[:8]), binary.BigEndian.Uint64(octets[8:])
	if shift >= 64 {
		before := high
		if high += 1 << (shift - 64); high < before || shift == 128 {
			return netip.Prefix{}
		}
	} else {
		before := low
		if low += 1 << shift; low < before {
			if high++; high == 0 {
				return netip.Prefix{}
			}
		}
	}
	binary.BigEndian.PutUint64(octets[:8], high)
	binary.BigEndian.PutUint64(octets[8:], low)
	next := netip.AddrFrom16(octets)
	if address.Is4() {
		if !next.Is4In6() {
			return netip.Prefix{}
		}
		next = next.Unmap()
	}
	return netip.PrefixFrom(next, length)
}
