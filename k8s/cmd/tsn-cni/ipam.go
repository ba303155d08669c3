// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"ktsn.io/ktsn/k8s/internal/cnistate"
)

// Of the CNI specification that IPAM plugins from before 1.1 speak; their verbs mean the same.
const olderVersion = "1.0.0"

// askIPAM fetches the pod's addresses and routes.
func (a *addition) askIPAM(ctx context.Context) error {
	if a.state.IPAM == nil {
		return nil
	}
	var result types.Result
	err := delegate(a.state.IPAM.Config, func(stdin []byte) (err error) {
		result, err = invoke.DelegateAdd(ctx, a.state.IPAM.Type, stdin, nil)
		return err
	})
	if err != nil {
		return ipamFault(a.state.IPAM.Type, err)
	}
	found, err := types100.NewResultFromResult(result)
	if err != nil {
		return ipamFault(a.state.IPAM.Type, err)
	}
	if a.state.IPAM.Result, err = json.Marshal(found); err != nil {
		return err
	}
	if len(found.IPs) == 0 {
		return failure(types.ErrInvalidNetworkConfig, "ipam: %s gave no address", a.state.IPAM.Type)
	}
	for _, given := range found.IPs {
		if given.Address.IP.To4() == nil && given.Address.IP.To16() == nil {
			return failure(types.ErrInvalidNetworkConfig, "ipam: %s gave no address but %v", a.state.IPAM.Type, given.Address)
		}
		a.addresses = append(a.addresses, given.Address.IP)
		a.addRoute(&net.IPNet{IP: given.Address.IP.Mask(given.Address.Mask), Mask: given.Address.Mask})
	}
	for _, route := range found.Routes {
		a.addRoute(&route.Dst)
	}
	if len(a.conf.DNS.Nameservers) == 0 {
		a.conf.DNS = found.DNS
	}
	return nil
}

// addRoute adds a route to a prefix behind the next hop, unless it is an address of the pod's or another one holds it. Prefixes of a
// family without an address of its own are left out.
func (a *addition) addRoute(prefix *net.IPNet) {
	length, bits := prefix.Mask.Size()
	if length == bits && slices.ContainsFunc(a.addresses, prefix.IP.Equal) {
		return
	}
	sameFamily := func(address net.IP) bool { return (address.To4() != nil) == (bits == 32) }
	if !slices.ContainsFunc(a.addresses, sameFamily) {
		return
	}
	// A default route is its own; nothing is left out because of it, and it is not left out itself.
	holds := func(outer *net.IPNet) bool {
		outerLength, outerBits := outer.Mask.Size()
		return outerBits == bits && outerLength > 0 && outerLength <= length && outer.Contains(prefix.IP)
	}
	if slices.ContainsFunc(a.routes, func(known *net.IPNet) bool { return holds(known) || known.String() == prefix.String() }) {
		return
	}
	a.routes = append(a.routes, prefix)
}

// delegate runs an IPAM plugin, and once more with an older version where it does not know the network's.
func delegate(stdin []byte, run func(stdin []byte) error) error {
	err := run(stdin)
	var cni *types.Error
	if !errors.As(err, &cni) || (cni.Code != types.ErrIncompatibleCNIVersion && !strings.Contains(cni.Msg, "incompatible CNI version")) {
		return err
	}
	var conf map[string]json.RawMessage
	if json.Unmarshal(stdin, &conf) != nil || string(conf["cniVersion"]) == `"`+olderVersion+`"` {
		return err
	}
	conf["cniVersion"] = json.RawMessage(`"` + olderVersion + `"`)
	older, failed := json.Marshal(conf)
	if failed != nil {
		return err
	}
	return run(older)
}

func ipamFault(plugin string, err error) error {
	var cni *types.Error
	if errors.As(err, &cni) {
		return types.NewError(cni.Code, fmt.Sprintf("ipam: %s: %s", plugin, cni.Msg), cni.Details)
	}
	return failure(types.ErrInternal, "ipam: %s: %v", plugin, err)
}

// undoIPAM gives the addresses back, with the configuration and the arguments that they were asked for with.
func undoIPAM(ctx context.Context, _ cnistate.Directory, state *cnistate.State) error {
	if state.IPAM == nil {
		return nil
	}
	environment := map[string]string{
		"CNI_CONTAINERID": state.ContainerID, "CNI_IFNAME": state.IfName, "CNI_NETNS": state.Netns, "CNI_ARGS": state.IPAM.Args,
	}
	if os.Getenv("CNI_PATH") == "" {
		environment["CNI_PATH"] = state.IPAM.Path
	}
	defer overlaid(environment)()
	err := delegate(state.IPAM.Config, func(stdin []byte) error { return invoke.DelegateDel(ctx, state.IPAM.Type, stdin, nil) })
	if err != nil {
		return ipamFault(state.IPAM.Type, err)
	}
	return nil
}

// overlaid sets variables for the plugins that this process starts, until the returned function is called.
func overlaid(variables map[string]string) func() {
	before := map[string]*string{}
	for name, value := range variables {
		if old, given := os.LookupEnv(name); given {
			before[name] = &old
		} else {
			before[name] = nil
		}
		os.Setenv(name, value)
	}
	return func() {
		for name, old := range before {
			if old == nil {
				os.Unsetenv(name)
			} else {
				os.Setenv(name, *old)
			}
		}
	}
}
