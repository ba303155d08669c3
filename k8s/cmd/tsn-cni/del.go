// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// loose is what DEL and GC may need of a configuration, however much of it is missing or wrong.
type loose struct {
	Name, RunDir, StateDir string
	IPAM                   *cnistate.IPAM
}

func loosely(args *skel.CmdArgs) loose {
	var raw map[string]json.RawMessage
	var found loose
	if json.Unmarshal(args.StdinData, &raw) != nil {
		return found
	}
	get := func(key string, to any) { _ = json.Unmarshal(raw[key], to) } // what is no text stays empty
	get("name", &found.Name)
	get("run_dir", &found.RunDir)
	get("state_dir", &found.StateDir)
	var ipam struct {
		Type string `json:"type"`
	}
	get("ipam", &ipam)
	if ipam.Type != "" {
		found.IPAM = &cnistate.IPAM{Type: ipam.Type, Config: args.StdinData, Args: args.Args, Path: args.Path}
	}
	return found
}

func del(args *skel.CmdArgs) error {
	given := loosely(args)
	directory := cnistate.Open(given.StateDir)
	unlock, err := locked(directory, args)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := directory.Load(args.ContainerID, args.IfName)
	switch {
	case errors.Is(err, cnistate.ErrBroken), err == nil && state == nil:
		return delGuessed(args, given, directory)
	case err != nil:
		return stateFault(directory, err)
	}
	if err := undo(context.Background(), directory, state); err != nil {
		return failure(types.ErrTryAgainLater, "%v", err)
	}
	return nil
}

// delGuessed takes away what it finds by the names alone. The state is lost, so it tries everything and ignores errors.
func delGuessed(args *skel.CmdArgs, given loose, directory cnistate.Directory) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	state := guessedState(args, given.RunDir)
	detachGuessed(ctx, state)
	faults := []error{undoAddresses(ctx, directory, state)}
	for _, state.IPAM = range guessedIPAM(given.IPAM) {
		faults = append(faults, undoIPAM(ctx, directory, state))
	}
	faults = append(faults, undoLink(ctx, directory, state))
	for _, err := range faults {
		if err != nil {
			fmt.Fprintln(os.Stderr, "tsn-cni:", err)
		}
	}
	if err := directory.Remove(args.ContainerID, args.IfName); err != nil {
		return stateFault(directory, err)
	}
	return nil
}

// detachGuessed detaches where ktsnd runs. Without ktsnd nothing is owed: most likely there never was an attachment.
func detachGuessed(ctx context.Context, state *cnistate.State) {
	_ = detach(ctx, cnistate.Owed{Attachment: state.Attachment, RunDir: state.RunDir}, 0)
}

// GuessedIPAM is where addresses may have come from. Host-local without ranges gets some, as its DEL looks for the container alone but asks for
// one, and keeps its leases under the name of the node's prefixes, or under the network's if there were ranges once.
func guessedIPAM(ipam *cnistate.IPAM) []*cnistate.IPAM {
	if ipam == nil {
		return nil
	}
	var conf struct {
		Name string          `json:"name"`
		IPAM json.RawMessage `json:"ipam"`
	}
	if ipam.Type != "host-local" || json.Unmarshal(ipam.Config, &conf) != nil || hasRanges(conf.IPAM) {
		return []*cnistate.IPAM{ipam}
	}
	var guessed []*cnistate.IPAM
	for _, name := range []string{leaseName, conf.Name} {
		filled, err := withRanges(ipam.Config, conf.IPAM, name, []string{"192.0.2.0/24"})
		if err == nil {
			guessed = append(guessed, &cnistate.IPAM{Type: ipam.Type, Config: filled, Args: ipam.Args, Path: ipam.Path})
		}
	}
	return guessed
}

func guessedState(args *skel.CmdArgs, runDir string) *cnistate.State {
	state := freshState(args, &cniconf.Conf{}, nodeapi.RunDir(runDir))
	state.HostInterface = cnistate.HostInterface(args.ContainerID, args.IfName)
	return state
}
