// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// routeProtocol marks our routes for people who look at them (`ip route show proto 158`), and tells our
	// unreachable ones from others'.
	routeProtocol = 158
	// unreachableMetric is behind every other route to the same prefix.
	unreachableMetric = 1 << 20
)

// tables is all that the kernel shall know about the device.
type tables struct {
	index      int
	routes     map[netip.Prefix]bool           // other nodes' prefixes; the gateway is the prefix's first address
	stations   map[netip.Addr]net.HardwareAddr // gateway → the other device's MAC address
	forwarding map[string]netip.Addr           // MAC address → tunnel end
	own        map[netip.Prefix]bool
}

func wanted(index int, own Own, others []Member) tables {
	t := tables{
		index: index, routes: map[netip.Prefix]bool{}, stations: map[netip.Addr]net.HardwareAddr{},
		forwarding: map[string]netip.Addr{}, own: map[netip.Prefix]bool{},
	}
	families := map[bool]bool{}
	for _, prefix := range own.Prefixes {
		t.own[prefix] = true
		families[prefix.Addr().Is4()] = true
	}
	for _, other := range others {
		for _, prefix := range other.Prefixes {
			// Without an address of its own family nothing could come back.
			if families[prefix.Addr().Is4()] {
				t.routes[prefix] = true
				t.stations[prefix.Addr()] = other.MAC
				t.forwarding[other.MAC.String()] = other.Address
			}
		}
	}
	return t
}

// addresses gives the device the first address of each own prefix: what the node itself sends into the network has it.
func (n *Network) addresses(link netlink.Link, prefixes []netip.Prefix, changes *[]string) error {
	have, err := n.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", n.config.Device, err)
	}
	want := map[netip.Prefix]bool{}
	for _, prefix := range prefixes {
		want[netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen())] = true
	}
	for _, entry := range have {
		prefix := prefixOf(entry.IPNet)
		if want[prefix] {
			delete(want, prefix)
			continue
		}
		if prefix.Addr().IsLinkLocalUnicast() {
			continue // the kernel's own
		}
		if err := n.handle.AddrDel(link, &entry); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Errorf("%s: remove address %s: %w", n.config.Device, prefix, err)
		}
		*changes = append(*changes, fmt.Sprintf("removed address %s", prefix))
	}
	for prefix := range want {
		address := &netlink.Addr{IPNet: ipNet(prefix), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
		if err := n.handle.AddrReplace(link, address); err != nil {
			return fmt.Errorf("%s: address %s: %w", n.config.Device, prefix, err)
		}
		*changes = append(*changes, fmt.Sprintf("added address %s", prefix))
	}
	return nil
}

// neighbours sets stations and tunnel ends, then removes all others.
func (n *Network) neighbours(t tables, changes *[]string) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
		have, err := n.handle.NeighList(t.index, family)
		if err != nil {
			return fmt.Errorf("neighbours of %s: %w", n.config.Device, err)
		}
		missing := t.wantedNeighbours(family)
		var surplus []netlink.Neigh
		for _, entry := range have {
			key := neighbourKey(family, entry)
			want, known := missing[key]
			switch {
			case known && sameNeighbour(entry, want):
				delete(missing, key)
			case !known && (entry.State&netlink.NUD_PERMANENT != 0 || family == unix.AF_BRIDGE):
				surplus = append(surplus, entry)
			}
		}
		for key, entry := range missing {
			if err := n.handle.NeighSet(&entry); err != nil {
				return fmt.Errorf("%s: neighbour %s: %w", n.config.Device, key, err)
			}
			*changes = append(*changes, "set neighbour "+key)
		}
		for _, entry := range surplus {
			entry.Family = family
			if family == unix.AF_BRIDGE {
				entry.Flags |= netlink.NTF_SELF
			}
			if err := n.handle.NeighDel(&entry); err != nil && !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("%s: remove neighbour %s: %w", n.config.Device, neighbourKey(family, entry), err)
			}
			*changes = append(*changes, "removed neighbour "+neighbourKey(family, entry))
		}
	}
	return nil
}

func (t tables) wantedNeighbours(family int) map[string]netlink.Neigh {
	wanted := map[string]netlink.Neigh{}
	add := func(entry netlink.Neigh) {
		entry.LinkIndex, entry.Family, entry.State = t.index, family, netlink.NUD_PERMANENT
		wanted[neighbourKey(family, entry)] = entry
	}
	if family == unix.AF_BRIDGE {
		for mac, end := range t.forwarding {
			station, _ := net.ParseMAC(mac)
			add(netlink.Neigh{Flags: netlink.NTF_SELF, HardwareAddr: station, IP: end.AsSlice()})
		}
		return wanted
	}
	for gateway, mac := range t.stations {
		if gateway.Is4() == (family == netlink.FAMILY_V4) {
			add(netlink.Neigh{HardwareAddr: mac, IP: gateway.AsSlice()})
		}
	}
	return wanted
}

// neighbourKey is what an entry is about: a station's address, or (forwarding) its MAC address.
func neighbourKey(family int, entry netlink.Neigh) string {
	if family == unix.AF_BRIDGE {
		return entry.HardwareAddr.String()
	}
	return entry.IP.String()
}

func sameNeighbour(have, want netlink.Neigh) bool {
	return have.State&netlink.NUD_PERMANENT != 0 && have.IP.Equal(want.IP) &&
		have.HardwareAddr.String() == want.HardwareAddr.String() && have.VNI == 0 && have.MasterIndex == 0
}

// ours are the routes that we answer for: those by the device, and unreachable ones with our mark.
func (n *Network) ours(t tables) ([]netlink.Route, error) {
	var ours []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
		list, err := n.handle.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		for _, route := range list {
			byDevice := route.LinkIndex == t.index && route.Protocol != unix.RTPROT_KERNEL
			unreachable := route.Type == unix.RTN_UNREACHABLE && route.Protocol == routeProtocol
			if byDevice || unreachable {
				ours = append(ours, route)
			}
		}
	}
	return ours, nil
}

func (n *Network) removeRoutes(t tables, changes *[]string) error {
	have, err := n.ours(t)
	if err != nil {
		return err
	}
	for _, route := range have {
		if t.wants(route) {
			continue
		}
		if err := n.handle.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("remove route %s: %w", route.Dst, err)
		}
		*changes = append(*changes, fmt.Sprintf("removed route %s", route.Dst))
	}
	return nil
}

// wants says whether a route is one of those that shall be there, exactly.
func (t tables) wants(route netlink.Route) bool {
	prefix := prefixOf(route.Dst)
	if route.Type == unix.RTN_UNREACHABLE {
		return t.own[prefix] && route.Priority == unreachableMetric
	}
	gateway, ok := netip.AddrFromSlice(route.Gw)
	return ok && t.routes[prefix] && gateway.Unmap() == prefix.Addr() && len(route.MultiPath) == 0 &&
		route.Protocol == routeProtocol
}

// addRoutes adds what is missing: a route to each other prefix, and for addresses of our own prefixes that no pod has the
// answer that they are not there, instead of a way out by the default route.
func (n *Network) addRoutes(t tables, changes *[]string) error {
	have, err := n.ours(t)
	if err != nil {
		return err
	}
	var faults []error
	there := map[netip.Prefix]bool{}
	for _, route := range have {
		there[prefixOf(route.Dst)] = true
	}
	for prefix := range t.routes {
		if there[prefix] {
			continue
		}
		route := &netlink.Route{
			LinkIndex: t.index, Dst: ipNet(prefix), Gw: prefix.Addr().AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN,
		}
		// Never in the place of another's: those of ours that were wrong are gone by now.
		if err := n.handle.RouteAdd(route); err != nil {
			faults = append(faults, routeFault(prefix, err))
			continue
		}
		*changes = append(*changes, fmt.Sprintf("added route %s", prefix))
	}
	for prefix := range t.own {
		if there[prefix] {
			continue
		}
		route := &netlink.Route{
			Dst: ipNet(prefix), Type: unix.RTN_UNREACHABLE, Protocol: routeProtocol, Priority: unreachableMetric,
			Table: unix.RT_TABLE_MAIN,
		}
		if err := n.handle.RouteAdd(route); err != nil {
			faults = append(faults, routeFault(prefix, err))
			continue
		}
		*changes = append(*changes, fmt.Sprintf("added unreachable %s", prefix))
	}
	return errors.Join(faults...)
}

func routeFault(prefix netip.Prefix, err error) error {
	if errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("route %s: the node has one that is not ours: the TSN network (--tsn-cidr) meets another network", prefix)
	}
	return fmt.Errorf("route %s: %w", prefix, err)
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	bits := prefix.Addr().BitLen()
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), bits)}
}

// prefixOf is the zero prefix where there is none (the default route of some messages).
func prefixOf(network *net.IPNet) netip.Prefix {
	if network == nil {
		return netip.Prefix{}
	}
	address, _ := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	return netip.PrefixFrom(address.Unmap(), bits)
}
