// SPDX-License-Identifier: Apache-2.0

// Package podlink makes a pod's routed interface.
//
// In: the pod's namespace, names, addresses, prefixes to reach. Out: a veth pair (Make), whose pod end then gets its addresses as host
// addresses and routes to the prefixes through a link-local next hop at the host end; the host has one route to each address (Configure).
//
//	pod:  10.99.1.7/32 on IFNAME, 10.99.0.0/16 via 169.254.1.1, neighbour 169.254.1.1 = MAC of the host end
//	host: 169.254.1.1/32 on ktsnHASH, 10.99.1.7/32 on it, neighbour 10.99.1.7 = MAC of the pod end
//
// Deleting the host end removes everything. The host's neighbour entries are not permanent, and the pod end announces a new MAC address: a
// later plugin of the chain may set one. This package never touches another link, another route or a default route of the pod.
package podlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Next hops of every pod, on the host end of its link.
var (
	NextHop4 = net.IPv4(169, 254, 1, 1).To4()
	NextHop6 = net.ParseIP("fe80::1")
)

// NextHop returns the next hop of the address's family.
func NextHop(address net.IP) net.IP {
	if address.To4() != nil {
		return NextHop4
	}
	return NextHop6
}

// HostAddress returns the address as a prefix of full length.
func HostAddress(address net.IP) *net.IPNet {
	if v4 := address.To4(); v4 != nil {
		return &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)}
	}
	return &net.IPNet{IP: address, Mask: net.CIDRMask(128, 128)}
}

// Spec says which link to make.
type Spec struct {
	Netns     string // path
	Interface string // in the pod
	Host      string // on the node
	MTU       int    // octets; 0: Ethernet's
	MAC       net.HardwareAddr
}

// Link is what Make has made. Close frees its sockets, and leaves the link as it is.
type Link struct {
	HostMAC, PodMAC net.HardwareAddr
	MTU             int

	ends      *ends
	host, pod netlink.Link
}

// ErrExists says that the pod has an interface of that name that tsn-cni did not make.
var ErrExists = errors.New("the pod has an interface of that name already")

// ends has a netlink socket in the node's namespace and one in the pod's.
type ends struct {
	host, pod *netlink.Handle
	namespace netns.NsHandle
}

func (e *ends) close() {
	for _, handle := range []*netlink.Handle{e.host, e.pod} {
		if handle != nil {
			handle.Close()
		}
	}
	e.namespace.Close()
}

func open(path string) (*ends, error) {
	namespace, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	e := &ends{namespace: namespace}
	if e.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		e.pod, err = netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	}
	if err != nil {
		e.close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return e, nil
}

// RandomMAC is a locally administered address of one station.
func RandomMAC() net.HardwareAddr {
	mac := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	mac[0] = mac[0]&0xfc | 0x02
	return mac
}

// MTU in octets where the configuration names none: Ethernet's.
const mtuDefault = 1500

// Make makes the link, both ends up and without addresses. After an error a part of it may exist: Delete removes it.
func Make(spec Spec) (*Link, error) {
	e, err := open(spec.Netns)
	if err != nil {
		return nil, err
	}
	link := &Link{HostMAC: RandomMAC(), PodMAC: spec.MAC, MTU: spec.MTU, ends: e}
	if link.PodMAC == nil {
		link.PodMAC = RandomMAC()
	}
	if link.MTU == 0 {
		link.MTU = mtuDefault
	}
	if link.host, link.pod, err = e.pair(spec, link); err != nil {
		link.Close()
		return nil, err
	}
	return link, nil
}

// Close frees the link's sockets.
func (l *Link) Close() { l.ends.close() }

// Configure sets the pod's addresses, its routes to the prefixes, and the node's routes to the addresses.
func (l *Link) Configure(addresses []net.IP, prefixes []*net.IPNet) error {
	if len(addresses) == 0 {
		return nil
	}
	if err := l.address(addresses); err != nil {
		return err
	}
	return l.route(addresses, prefixes)
}

// pair makes both ends, up.
func (e *ends) pair(spec Spec, link *Link) (host, pod netlink.Link, err error) {
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.MTU, veth.HardwareAddr, veth.Flags = spec.Host, link.MTU, link.HostMAC, net.FlagUp
	veth.PeerName, veth.PeerMTU, veth.PeerHardwareAddr, veth.PeerNamespace = spec.Interface, uint32(link.MTU), link.PodMAC, netlink.NsFd(e.namespace)
	if err := e.host.LinkAdd(veth); err != nil {
		if _, missing := e.pod.LinkByName(spec.Interface); missing == nil && errors.Is(err, syscall.EEXIST) {
			return nil, nil, fmt.Errorf("%s: %w", spec.Interface, ErrExists)
		}
		return nil, nil, fmt.Errorf("veth %s, %s (MTU %d): %w", spec.Host, spec.Interface, spec.MTU, err)
	}
	if pod, err = e.pod.LinkByName(spec.Interface); err == nil {
		err = e.pod.LinkSetUp(pod)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s up: %w", spec.Interface, err)
	}
	return veth, pod, nil
}

func (l *Link) address(addresses []net.IP) error {
	name := l.pod.Attrs().Name
	if err := prepare(l.ends.namespace, name, families(addresses)); err != nil {
		return err
	}
	for _, address := range addresses {
		own := &netlink.Addr{IPNet: HostAddress(address), Flags: unix.IFA_F_NODAD}
		if err := l.ends.pod.AddrAdd(l.pod, own); err != nil {
			return fmt.Errorf("address %s on %s: %w", address, name, err)
		}
	}
	for _, family := range families(addresses) {
		hop := &netlink.Addr{IPNet: HostAddress(family), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK}
		if err := l.ends.host.AddrAdd(l.host, hop); err != nil {
			return fmt.Errorf("address %s on %s: %w", family, l.host.Attrs().Name, err)
		}
		if err := neighbour(l.ends.pod, l.pod, family, l.HostMAC, netlink.NUD_PERMANENT); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) route(addresses []net.IP, prefixes []*net.IPNet) error {
	for _, address := range addresses {
		if err := neighbour(l.ends.host, l.host, address, l.PodMAC, netlink.NUD_REACHABLE); err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: l.host.Attrs().Index, Dst: HostAddress(address), Scope: unix.RT_SCOPE_LINK}
		if err := l.ends.host.RouteAdd(route); err != nil {
			return fmt.Errorf("route of the node to %s by %s: %w%s", address, l.host.Attrs().Name, err, another(err))
		}
	}
	// The node sends from the next hop's address. Another interface of tsn-cni in the pod may have the route already: it leads to the same node.
	name := l.pod.Attrs().Name
	if hops := families(addresses); len(hops) > 0 && hops[0].To4() != nil {
		back := &netlink.Route{LinkIndex: l.pod.Attrs().Index, Dst: HostAddress(NextHop4), Scope: unix.RT_SCOPE_LINK}
		if err := l.ends.pod.RouteAdd(back); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("route of the pod to %s by %s: %w", NextHop4, name, err)
		}
	}
	for _, prefix := range prefixes {
		route := &netlink.Route{LinkIndex: l.pod.Attrs().Index, Dst: prefix, Gw: NextHop(prefix.IP), Flags: int(netlink.FLAG_ONLINK)}
		if err := l.ends.pod.RouteAdd(route); err != nil {
			return fmt.Errorf("route of the pod to %s by %s: %w%s", prefix, name, err, another(err))
		}
	}
	return nil
}

func another(err error) string {
	if errors.Is(err, syscall.EEXIST) {
		return " (another interface has that address or prefix)"
	}
	return ""
}

func neighbour(handle *netlink.Handle, link netlink.Link, address net.IP, mac net.HardwareAddr, state int) error {
	family := netlink.FAMILY_V6
	if address.To4() != nil {
		family = netlink.FAMILY_V4
	}
	entry := &netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: family, State: state, IP: address, HardwareAddr: mac,
	}
	if err := handle.NeighSet(entry); err != nil {
		return fmt.Errorf("neighbour %s on %s: %w", address, link.Attrs().Name, err)
	}
	return nil
}

// families returns the next hops that these addresses need.
func families(addresses []net.IP) []net.IP {
	var hops []net.IP
	for _, hop := range []net.IP{NextHop4, NextHop6} {
		for _, address := range addresses {
			if (address.To4() != nil) == (hop.To4() != nil) {
				hops = append(hops, hop)
				break
			}
		}
	}
	return hops
}

// Delete removes the link by its host end. It is no error where there is none.
func Delete(host string) error {
	link, err := netlink.LinkByName(host)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("%s: %w", host, err)
	}
	return nil
}

// Unroute removes the node's routes by a host end, so that their addresses can be given to another pod. It is no error where there is none.
func Unroute(host string) error {
	link, err := netlink.LinkByName(host)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("routes by %s: %w", host, err)
	}
	var faults []error
	for _, route := range routes {
		if length, bits := route.Dst.Mask.Size(); length != bits {
			continue // the kernel's own, fe80::/64
		}
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
			faults = append(faults, fmt.Errorf("route to %s by %s: %w", route.Dst, host, err))
		}
	}
	return errors.Join(faults...)
}

// MTUOf a device of the node; 0 where there is none.
func MTUOf(device string) int {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return 0
	}
	return link.Attrs().MTU
}

func isGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, syscall.ENODEV)
}
