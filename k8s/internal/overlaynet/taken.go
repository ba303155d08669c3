// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// Claim is a range that is in use outside the TSN network.
type Claim struct {
	What   string
	Prefix netip.Prefix
}

// ClaimsOf returns the ranges that a Node uses: its addresses, and its pods' range on the default network. It leaves out what it cannot read.
func ClaimsOf(node *kinds.Node) []Claim {
	var claims []Claim
	for _, one := range node.Status.Addresses {
		if address, err := netip.ParseAddr(one.Address); err == nil { // else a name
			claims = append(claims, HostClaim(fmt.Sprintf("%s of node %s", one.Type, node.Name), address))
		}
	}
	ranges := node.Spec.PodCIDRs
	if len(ranges) == 0 && node.Spec.PodCIDR != "" {
		ranges = []string{node.Spec.PodCIDR}
	}
	for _, text := range ranges {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			claims = append(claims, Claim{fmt.Sprintf("pods of node %s on the default network", node.Name), prefix.Masked()})
		}
	}
	return claims
}

// HostClaim makes the claim of one address.
func HostClaim(what string, address netip.Addr) Claim {
	address = address.Unmap().WithZone("")
	return Claim{what, netip.PrefixFrom(address, address.BitLen())}
}

// ServiceClaim makes the claim of the API server's service, from the variable that every pod has: an address of the services' range.
func ServiceClaim(environment func(string) string) []Claim {
	address, err := netip.ParseAddr(environment("KUBERNETES_SERVICE_HOST"))
	if err != nil {
		return nil
	}
	return []Claim{HostClaim("the API server, KUBERNETES_SERVICE_HOST", address)}
}

// CheckFree refuses a TSN network that overlaps a claim: its routes would take packets of others.
func CheckFree(cidrs []netip.Prefix, claims []Claim) error {
	var found []string
	for _, cidr := range cidrs {
		for _, claim := range claims {
			if cidr.Overlaps(claim.Prefix) {
				found = append(found, fmt.Sprintf("%s (%s)", claim.Prefix, claim.What))
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	found = slices.Compact(found)
	more := ""
	if len(found) > 3 {
		more = fmt.Sprintf(" and %d more", len(found)-3)
		found = found[:3]
	}
	return fmt.Errorf("--tsn-cidr: found %s, which overlaps %s%s; expected a range that nothing else in the cluster uses: set another one "+
		"for controller and agents (network.cidrs)", strings.Join(Texts(cidrs), ","), strings.Join(found, ", "), more)
}

// Reachable leaves out the members with a tunnel end of another address family than this node's: no frame reaches them.
func Reachable(own netip.Addr, others []Member) (reachable []Member, conflicts []string) {
	for _, other := range others {
		if other.Address.Is4() == own.Is4() {
			reachable = append(reachable, other)
			continue
		}
		conflicts = append(conflicts, fmt.Sprintf("node %s: its end of the tunnel, %s, is of another address family than this node's, %s: "+
			"give both an InternalIP of one family first, or name the devices with --uplink", other.Node, other.Address, own))
	}
	return reachable, conflicts
}
