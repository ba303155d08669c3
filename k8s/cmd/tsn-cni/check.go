// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// check compares what ADD made, as the chain's result has it, with what is there.
func check(args *skel.CmdArgs) error {
	conf, err := cniconf.Parse(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	directory := cnistate.Open(conf.StateDir)
	unlock, err := locked(directory, args)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), checkPatience)
	defer cancel()
	state, err := directory.Load(args.ContainerID, args.IfName)
	if err != nil {
		return stateFault(directory, err)
	}
	if state == nil {
		return checkWithout(args, conf)
	}
	if !state.Done {
		return failure(codeMissing, "ADD of %s did not come to its end", args.IfName)
	}
	own, err := resultOf(state.Result)
	if err != nil {
		return failure(codeState, "result of ADD in the state file: %v", err)
	}
	chain := own
	if conf.IsChained() {
		if chain, err = previousAs100(conf); err != nil {
			return err
		}
	}
	return errors.Join(checkLink(state, own, chain), checkAttachment(ctx, state), checkIPAM(ctx, chain, conf.CNIVersion, state))
}

// checkWithout decides without a state file: that is right for a pod that did not ask, and wrong where the result names our interface.
func checkWithout(args *skel.CmdArgs, conf *cniconf.Conf) error {
	host := cnistate.HostInterface(args.ContainerID, args.IfName)
	result, err := previous(conf)
	isOurs := conf.IPAMType != ""
	if found, _ := result.(*types100.Result); err == nil && found != nil {
		isOurs = isOurs || slices.ContainsFunc(found.Interfaces, func(i *types100.Interface) bool { return i.Name == host })
	}
	if isOurs || conf.IsWanted() {
		return failure(types.ErrUnknownContainer, "%s of container %s is not attached: no state of an ADD", args.IfName, args.ContainerID)
	}
	return nil
}

// checkLink compares the pod's interface with the result of the whole chain: a later plugin may have changed what ADD made. Of the routes
// it asks only for those that ADD made and that the result still has.
func checkLink(state *cnistate.State, own, chain *types100.Result) (err error) {
	expected := podlink.Expected{Netns: state.Netns, Interface: state.IfName, Host: state.HostInterface}
	for _, found := range chain.Interfaces {
		if isPodEnd(found, state.IfName) && found.Mac != "" {
			if expected.MAC, err = net.ParseMAC(found.Mac); err != nil {
				return failure(types.ErrDecodingFailure, "prevResult: interface %s: %v", found.Name, err)
			}
		}
	}
	expected.Addresses = addressesOf(chain, state.IfName)
	if state.HostInterface != "" {
		made := addressesOf(own, state.IfName)
		for _, address := range expected.Addresses {
			if slices.ContainsFunc(made, address.Equal) {
				expected.Reachable = append(expected.Reachable, address)
			}
		}
		expected.Routes = routesOfBoth(own, chain)
	}
	return missing(podlink.Check(expected))
}

// resultOf reads a result of any version.
func resultOf(printed []byte) (*types100.Result, error) {
	result, err := create.CreateFromBytes(printed)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(result)
}

func routesOfBoth(own, chain *types100.Result) []netlink.Route {
	var routes []netlink.Route
	for _, made := range own.Routes {
		for _, found := range chain.Routes {
			if found.Dst.String() == made.Dst.String() && (found.GW == nil || found.GW.Equal(made.GW)) {
				routes = append(routes, netlink.Route{Dst: &made.Dst, Gw: found.GW})
				break
			}
		}
	}
	return routes
}

func missing(err error) error {
	if err == nil {
		return nil
	}
	return failure(codeMissing, "%v", err)
}

func checkAttachment(ctx context.Context, state *cnistate.State) error {
	daemon := daemonAt(state.RunDir)
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	list, err := daemon.List(ctx, &nodeapi.ListRequest{})
	if err != nil {
		return err
	}
	for _, listed := range list.GetAttachments() {
		if listed.GetName() == state.Attachment {
			return nil
		}
	}
	return failure(codeMissing, "ktsnd has no attachment %s", state.Attachment)
}

// checkIPAM hands the chain's result on, as the specification asks for, with IPAM's own words about what is still there: ADD has put its
// next hop into their place.
func checkIPAM(ctx context.Context, chain *types100.Result, version string, state *cnistate.State) error {
	if state.IPAM == nil {
		return nil
	}
	if state.IPAM.Result != nil {
		given, err := resultOf(state.IPAM.Result)
		if err != nil {
			return failure(codeState, "IPAM's result in the state file: %v", err)
		}
		chain = inWordsOf(given, chain)
	}
	printed, err := chain.GetAsVersion(version)
	if err != nil {
		return failure(types.ErrIncompatibleCNIVersion, "prevResult: %v", err)
	}
	var input map[string]any
	if err := json.Unmarshal(state.IPAM.Config, &input); err != nil {
		return failure(codeState, "IPAM's configuration in the state file: %v", err)
	}
	input["prevResult"] = printed
	stdin, err := json.Marshal(input)
	if err != nil {
		return err
	}
	err = delegate(stdin, func(stdin []byte) error { return invoke.DelegateCheck(ctx, state.IPAM.Type, stdin, nil) })
	if err != nil {
		return ipamFault(state.IPAM.Type, err)
	}
	return nil
}

// inWordsOf returns the chain's result with masks, gateways and routes as IPAM gave them.
func inWordsOf(given, chain *types100.Result) *types100.Result {
	said := *chain
	said.IPs, said.Routes = nil, nil
	for _, found := range chain.IPs {
		in := *found
		for _, one := range given.IPs {
			if one.Address.IP.Equal(found.Address.IP) {
				in.Address, in.Gateway = one.Address, one.Gateway
			}
		}
		said.IPs = append(said.IPs, &in)
	}
	for _, found := range chain.Routes {
		in := found.Copy()
		for _, one := range given.Routes {
			if one.Dst.String() == found.Dst.String() {
				in.GW = one.GW
			}
		}
		said.Routes = append(said.Routes, in)
	}
	return &said
}

// status returns an error when an ADD could not succeed now. Where only pods that ask are attached, all others are served whatever ktsnd
// does, and an error here would make the whole node unready.
func status(args *skel.CmdArgs) error {
	conf, err := cniconf.Parse(args.StdinData, args.Args)
	if err != nil {
		return err
	}
	if conf.Attach == "asked" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionPatience)
	defer cancel()
	runDir := nodeapi.RunDir(conf.RunDir)
	daemon := daemonAt(runDir)
	defer daemon.Close()
	if err := compatible(ctx, daemon); err != nil {
		return failure(codeUnavailable, "%v", err)
	}
	directory := cnistate.Open(conf.StateDir)
	payOwed(ctx, directory, runDir, "", "")
	node, err := readNode(runDir)
	if err != nil {
		return failure(codeUnavailable, "%v", err)
	}
	if _, err := ipamInput(args.StdinData, conf, node); err != nil {
		return failure(codeUnavailable, "%s", coded(err).Msg)
	}
	if most := capacityOf(node); most > 0 && directory.Count() >= most {
		return failure(codeLimited, "this node's TSN capacity is spent: %d fit", most)
	}
	if conf.IPAMType == "" {
		return nil
	}
	return statusOfIPAM(ctx, args, conf)
}

// statusOfIPAM asks the IPAM plugin. A plugin from before CNI 1.1 does not know STATUS; that is no error.
func statusOfIPAM(ctx context.Context, args *skel.CmdArgs, conf *cniconf.Conf) error {
	err := invoke.DelegateStatus(ctx, conf.IPAMType, args.StdinData, nil)
	var cni *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &cni) && (cni.Code == codeUnavailable || cni.Code == codeLimited):
		return ipamFault(conf.IPAMType, err)
	case !errors.As(err, &cni):
		return failure(codeUnavailable, "%s", fmt.Sprintf("ipam: %s: %v", conf.IPAMType, err))
	}
	return nil
}
