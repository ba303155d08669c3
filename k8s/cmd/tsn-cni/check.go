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

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// check compares everything that ADD made with what is there.
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
	return errors.Join(checkLink(state), checkAttachment(ctx, state), checkIPAM(ctx, state))
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

func checkLink(state *cnistate.State) error {
	if state.HostInterface == "" {
		return missing(podlink.CheckForeign(state.Netns, state.IfName))
	}
	var printed struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(state.Result, &printed); err != nil {
		return failure(codeState, "result of ADD in the state file: %v", err)
	}
	parsed, err := types100.NewResult(state.Result)
	if err != nil {
		// A result before version 1.0 has another form.
		return missing(podlink.Check(podlink.Spec{Netns: state.Netns, Interface: state.IfName, Host: state.HostInterface}))
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return failure(codeState, "result of ADD in the state file: %v", err)
	}
	spec := podlink.Spec{Netns: state.Netns, Interface: state.IfName, Host: state.HostInterface}
	for _, found := range result.Interfaces {
		if found.Name == state.IfName && found.Sandbox != "" {
			spec.MTU = found.Mtu
			spec.MAC, _ = net.ParseMAC(found.Mac) // ours: ADD wrote it
		}
	}
	for _, found := range result.IPs {
		spec.Addresses = append(spec.Addresses, found.Address.IP)
	}
	for _, found := range result.Routes {
		spec.Routes = append(spec.Routes, &found.Dst)
	}
	return missing(podlink.Check(spec))
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

func checkIPAM(ctx context.Context, state *cnistate.State) error {
	if state.IPAM == nil {
		return nil
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(state.IPAM.Config, &conf); err != nil {
		return failure(codeState, "IPAM's configuration in the state file: %v", err)
	}
	conf["prevResult"] = state.Result // the specification asks for it; some plugins do
	input, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	err = delegate(input, func(stdin []byte) error { return invoke.DelegateCheck(ctx, state.IPAM.Type, stdin, nil) })
	if err != nil {
		return ipamFault(state.IPAM.Type, err)
	}
	return nil
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
