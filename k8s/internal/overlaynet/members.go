// SPDX-License-Identifier: Apache-2.0

// Package overlaynet is the TSN network between the nodes: one VXLAN device each, as Flannel makes one, and for each
// other node its prefixes (routes), device (neighbour) and tunnel end (forwarding entry).
//
// In: what the Nodes' annotations say. Out: this node's own annotation, the device, and the kernel's tables, which ktsnd
// learns its peers from (`learn_from`); so the kernel and ktsnd never disagree. Entries on the device that no node
// asked for are removed. It never touches another device, nor routes that it did not make, and it never
// believes an annotation beyond the cluster's TSN prefixes.
package overlaynet

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Annotations of a Node.
const (
	// AnnotationVTEP says where a node's VXLAN device is: JSON of a VTEP. The node's own agent writes it.
	AnnotationVTEP = "ktsn.io/vtep"
	// AnnotationPrefixes are a node's pod prefixes of the TSN network, comma-separated. ktsn-controller or an
	// administrator writes it.
	AnnotationPrefixes = "ktsn.io/tsn-prefixes"
)

// limits of an annotation: one node has one or two prefixes.
const (
	annotationMax = 4096
	prefixesMax   = 16
)

// VTEP is the contents of AnnotationVTEP.
type VTEP struct {
	Address  string   `json:"address"`
	MAC      string   `json:"mac"`
	VNI      int      `json:"vni"`
	Port     int      `json:"port"`
	MTU      int      `json:"mtu"`
	Prefixes []string `json:"prefixes"`
}

// Annotation is the text of AnnotationVTEP.
func (v VTEP) Annotation() string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return string(data)
}

// Member is one node of the TSN network, checked.
type Member struct {
	Node string
	// Created decides who wins where two nodes claim the same: the older.
	Created  time.Time
	Address  netip.Addr
	MAC      net.HardwareAddr
	VNI      int
	Port     int
	Prefixes []netip.Prefix
}

// ParseVTEP checks a node's AnnotationVTEP.
func ParseVTEP(text string) (Member, error) {
	var member Member
	if len(text) > annotationMax {
		return member, fmt.Errorf("%s: longer than %d octets", AnnotationVTEP, annotationMax)
	}
	var vtep VTEP
	if err := json.Unmarshal([]byte(text), &vtep); err != nil {
		return member, fmt.Errorf("%s: %w", AnnotationVTEP, err)
	}
	address, err := netip.ParseAddr(vtep.Address)
	if err != nil || !usableAddress(address) {
		return member, fmt.Errorf("%s: address: found %q, expected a node's IP address", AnnotationVTEP, vtep.Address)
	}
	mac, err := net.ParseMAC(vtep.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || slices.Max(mac) == 0 {
		return member, fmt.Errorf("%s: mac: found %q, expected a station's MAC address", AnnotationVTEP, vtep.MAC)
	}
	prefixes, err := checkPrefixes(AnnotationVTEP+": prefixes", vtep.Prefixes)
	if err != nil {
		return member, err
	}
	return Member{Address: address, MAC: mac, VNI: vtep.VNI, Port: vtep.Port, Prefixes: prefixes}, nil
}

func usableAddress(address netip.Addr) bool {
	return address.IsValid() && address.Zone() == "" && !address.IsUnspecified() && !address.IsLoopback() &&
		!address.IsMulticast() && !address.IsLinkLocalUnicast() && !address.Is4In6()
}

// ParsePrefixes checks AnnotationPrefixes, or the value of --tsn-cidr: prefixes with commas between them.
func ParsePrefixes(what, text string) ([]netip.Prefix, error) {
	if len(text) > annotationMax {
		return nil, fmt.Errorf("%s: longer than %d octets", what, annotationMax)
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return checkPrefixes(what, strings.Split(text, ","))
}

func checkPrefixes(what string, texts []string) ([]netip.Prefix, error) {
	if len(texts) > prefixesMax {
		return nil, fmt.Errorf("%s: found %d, at most %d", what, len(texts), prefixesMax)
	}
	prefixes := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: found %q, expected a prefix as in 10.99.1.0/24", what, text)
		case prefix != prefix.Masked():
			return nil, fmt.Errorf("%s: found %q, expected the network itself: %s", what, text, prefix.Masked())
		case prefix.Bits() == 0 || prefix.Addr().Is4In6() || prefix.Addr().IsMulticast() || prefix.Addr().IsLoopback():
			return nil, fmt.Errorf("%s: found %q, expected a prefix of pods", what, text)
		}
		if !slices.Contains(prefixes, prefix) {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, nil
}

// Texts writes prefixes as text.
func Texts(prefixes []netip.Prefix) []string {
	texts := make([]string, len(prefixes))
	for index, prefix := range prefixes {
		texts[index] = prefix.String()
	}
	return texts
}

// MACOf is the MAC address of a node's VXLAN device. It is always the same, so that a new device, or a node that starts again, needs no change on
// other nodes.
func MACOf(node string, vni int) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "ktsn vtep %d %s", vni, node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // a station's, locally administered
	return mac
}

// Admit decides which nodes are part of the network, and with which prefixes. It refuses prefixes outside of `cidrs`, an address, MAC address or
// prefix that an older node has, and another VNI or port than this network's. It returns each refusal as text, in a fixed order.
func Admit(members []Member, cidrs []netip.Prefix, vni, port int) (admitted []Member, conflicts []string) {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int {
		if order := a.Created.Compare(b.Created); order != 0 {
			return order
		}
		return strings.Compare(a.Node, b.Node)
	})
	refuse := func(format string, arguments ...any) {
		conflicts = append(conflicts, fmt.Sprintf(format, arguments...))
	}
	for _, member := range members {
		if member.VNI != vni || member.Port != port {
			refuse("node %s uses VNI %d and port %d, this network %d and %d: its agent has other flags",
				member.Node, member.VNI, member.Port, vni, port)
			continue
		}
		if older := sameStation(admitted, member); older != "" {
			refuse("node %s has the address or the MAC address of node %s, which is older", member.Node, older)
			continue
		}
		kept := make([]netip.Prefix, 0, len(member.Prefixes))
		for _, prefix := range member.Prefixes {
			if !within(cidrs, prefix) {
				refuse("node %s: %s is not a part of the TSN network (--tsn-cidr)", member.Node, prefix)
			} else if older := claimed(admitted, prefix); older != "" {
				refuse("node %s: %s is claimed by node %s too, which is older", member.Node, prefix, older)
			} else {
				kept = append(kept, prefix)
			}
		}
		member.Prefixes = kept
		admitted = append(admitted, member)
	}
	return admitted, conflicts
}

func sameStation(admitted []Member, member Member) string {
	for _, other := range admitted {
		if other.Address == member.Address || slices.Equal(other.MAC, member.MAC) {
			return other.Node
		}
	}
	return ""
}

func within(cidrs []netip.Prefix, prefix netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(cidr netip.Prefix) bool {
		return cidr.Bits() < prefix.Bits() && cidr.Contains(prefix.Addr())
	})
}

// Held divides a node's prefixes into those that the controller or an administrator assigned to it, and all others.
func Held(prefixes, given []netip.Prefix) (held, refused []netip.Prefix) {
	for _, prefix := range prefixes {
		if slices.Contains(given, prefix) {
			held = append(held, prefix)
		} else {
			refused = append(refused, prefix)
		}
	}
	return held, refused
}

func claimed(admitted []Member, prefix netip.Prefix) string {
	for _, other := range admitted {
		if slices.ContainsFunc(other.Prefixes, prefix.Overlaps) {
			return other.Node
		}
	}
	return ""
}
