// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Expected is what Check looks for. Its zero values are not looked at.
type Expected struct {
	Netns     string // path
	Interface string // in the pod
	Host      string // on the node; empty: another plugin made the interface
	MAC       net.HardwareAddr
	Addresses []net.IP        // on the interface
	Reachable []net.IP        // addresses to which the node has a route by the host end
	Routes    []netlink.Route // of the pod by the interface: destination, and gateway if there is one
}

// Check compares the link with what is expected. The error names every difference.
func Check(expected Expected) error {
	e, err := open(expected.Netns)
	if err != nil {
		return err
	}
	defer e.close()
	pod, err := e.pod.LinkByName(expected.Interface)
	if err != nil {
		return fmt.Errorf("the pod's interface %s: %w", expected.Interface, err)
	}
	faults := []error{e.checkAddresses(pod, expected.Addresses)}
	if expected.MAC != nil && pod.Attrs().HardwareAddr.String() != expected.MAC.String() {
		faults = append(faults, fmt.Errorf("%s has MAC address %s, not %s", expected.Interface, pod.Attrs().HardwareAddr, expected.MAC))
	}
	if expected.Host == "" {
		return errors.Join(faults...)
	}
	host, err := e.host.LinkByName(expected.Host)
	if err != nil {
		return fmt.Errorf("the host end %s: %w", expected.Host, err)
	}
	faults = append(faults, up(pod), up(host))
	// The kernel drops the routes of an interface that enters a VRF: they are that plugin's then.
	if pod.Attrs().MasterIndex == 0 {
		for _, route := range expected.Routes {
			faults = append(faults, hasRoute(e.pod, pod, route.Dst, route.Gw))
		}
	}
	for _, address := range expected.Reachable {
		faults = append(faults, hasRoute(e.host, host, HostAddress(address), nil))
	}
	return errors.Join(faults...)
}

// CheckForeign returns an error when the interface that another plugin made is not there.
func CheckForeign(namespace, name string) error {
	return Check(Expected{Netns: namespace, Interface: name})
}

func up(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s is down", link.Attrs().Name)
	}
	return nil
}

func (e *ends) checkAddresses(pod netlink.Link, addresses []net.IP) error {
	found, err := e.pod.AddrList(pod, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	var faults []error
	for _, address := range addresses {
		has := false
		for _, one := range found {
			has = has || one.IP.Equal(address)
		}
		if !has {
			faults = append(faults, fmt.Errorf("%s has no address %s", pod.Attrs().Name, address))
		}
	}
	return errors.Join(faults...)
}

// hasRoute looks for a route to the whole prefix in all tables: a plugin for routing by source moves routes to a table of its own, or has one
// for all destinations instead.
func hasRoute(handle *netlink.Handle, link netlink.Link, prefix *net.IPNet, hop net.IP) error {
	wanted := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNICAST}
	family := netlink.FAMILY_V6
	if prefix.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	found, err := handle.RouteListFiltered(family, wanted, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return err
	}
	length, _ := prefix.Mask.Size()
	for _, route := range found {
		isWider := true // without a destination: to all
		if route.Dst != nil {
			outer, _ := route.Dst.Mask.Size()
			isWider = outer <= length && route.Dst.Contains(prefix.IP)
		}
		if isWider && (hop == nil || route.Gw.Equal(hop)) {
			return nil
		}
	}
	return fmt.Errorf("%s has no route to %s", link.Attrs().Name, prefix)
}
