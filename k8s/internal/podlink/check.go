// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// Check compares the link with what Make made. The error names every difference.
func Check(spec Spec) error {
	e, err := open(spec.Netns)
	if err != nil {
		return err
	}
	defer e.close()
	pod, err := e.pod.LinkByName(spec.Interface)
	if err != nil {
		return fmt.Errorf("the pod's interface %s: %w", spec.Interface, err)
	}
	host, err := e.host.LinkByName(spec.Host)
	if err != nil {
		return fmt.Errorf("the host end %s: %w", spec.Host, err)
	}
	faults := []error{up(pod), up(host), e.checkAddresses(pod, spec.Addresses)}
	if spec.MAC != nil && pod.Attrs().HardwareAddr.String() != spec.MAC.String() {
		faults = append(faults, fmt.Errorf("%s has MAC address %s, not %s", spec.Interface, pod.Attrs().HardwareAddr, spec.MAC))
	}
	if spec.MTU != 0 && pod.Attrs().MTU != spec.MTU {
		faults = append(faults, fmt.Errorf("%s has MTU %d, not %d", spec.Interface, pod.Attrs().MTU, spec.MTU))
	}
	for _, prefix := range spec.Routes {
		faults = append(faults, hasRoute(e.pod, pod, prefix, NextHop(prefix.IP)))
	}
	for _, address := range spec.Addresses {
		faults = append(faults, hasRoute(e.host, host, HostAddress(address), nil))
	}
	return errors.Join(faults...)
}

// CheckForeign returns an error when the interface that another plugin made is not there.
func CheckForeign(namespace, name string) error {
	e, err := open(namespace)
	if err != nil {
		return err
	}
	defer e.close()
	if _, err := e.pod.LinkByName(name); err != nil {
		return fmt.Errorf("the pod's interface %s: %w", name, err)
	}
	return nil
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

func hasRoute(handle *netlink.Handle, link netlink.Link, prefix *net.IPNet, hop net.IP) error {
	wanted := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix}
	family := netlink.FAMILY_V6
	if prefix.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	found, err := handle.RouteListFiltered(family, wanted, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
	if err != nil {
		return err
	}
	for _, route := range found {
		if hop == nil || route.Gw.Equal(hop) {
			return nil
		}
	}
	return fmt.Errorf("%s has no route to %s", link.Attrs().Name, prefix)
}
