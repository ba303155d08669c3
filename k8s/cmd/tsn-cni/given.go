// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// given lists the addresses that the node has given to the pod: IPAM's, or those in the result of the plugin that made the interface. An empty
// list makes ktsnd take the addresses that the interface has now.
func (a *addition) given() ([]string, error) {
	addresses := a.addresses
	if a.conf.IsChained() {
		found, err := a.chainedAddresses()
		if err != nil {
			return nil, err
		}
		addresses = found
	}
	var given []string
	for _, address := range addresses {
		given = append(given, address.String())
	}
	slices.Sort(given)
	return slices.Compact(given), nil
}

// chainedAddresses returns the addresses of this interface in the previous plugin's result. A result that names no interface for an
// address means the one that it is about.
func (a *addition) chainedAddresses() ([]net.IP, error) {
	result, err := previousAs100(a.conf)
	if err != nil {
		return nil, err
	}
	return addressesOf(result, a.args.IfName), nil
}

// addressesOf returns the addresses of the pod's interface in a result.
func addressesOf(result *types100.Result, ifName string) []net.IP {
	var addresses []net.IP
	for _, found := range result.IPs {
		at := found.Interface
		if at == nil || (*at >= 0 && *at < len(result.Interfaces) && isPodEnd(result.Interfaces[*at], ifName)) {
			addresses = append(addresses, found.Address.IP)
		}
	}
	return addresses
}

// isPodEnd is true for the pod's interface of that name: the host's end of a pair has no sandbox.
func isPodEnd(found *types100.Interface, ifName string) bool {
	return found.Name == ifName && found.Sandbox != ""
}
