// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
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
	printed, err := previous(a.conf)
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(printed)
	if err != nil {
		return nil, failure(types.ErrDecodingFailure, "prevResult: %v", err)
	}
	var addresses []net.IP
	for _, found := range result.IPs {
		at := found.Interface
		if at == nil || (*at >= 0 && *at < len(result.Interfaces) && a.isOwn(result.Interfaces[*at])) {
			addresses = append(addresses, found.Address.IP)
		}
	}
	return addresses, nil
}

// isOwn says whether an interface of the result is the one that is attached: the host's end of a pair has no sandbox, and other
// interfaces of the pod have other names.
func (a *addition) isOwn(found *types100.Interface) bool {
	return found.Name == a.args.IfName && found.Sandbox != ""
}
