// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodecall"
	"ktsn.io/ktsn/k8s/internal/nodepb"
)

// Loose is what DEL, GC and STATUS may need of a configuration, however much of it is left, or wrong.
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
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	unlock, err := directory.Lock(ctx, args.ContainerID, args.IfName)
	if err != nil {
		return stateFault(directory, err)
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

// DelGuessed takes away what the names alone tell: nothing is known, so nothing may be missed and nothing may fail.
func delGuessed(args *skel.CmdArgs, given loose, directory cnistate.Directory) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	state := guessedState(args, given.RunDir)
	state.IPAM = guessedIPAM(given.IPAM)
	// Without ktsnd nothing is owed: most likely there never was an attachment.
	daemon := nodecall.New(state.RunDir)
	if daemon.Present() {
		_ = detach(ctx, cnistate.Owed{Attachment: state.Attachment, RunDir: state.RunDir})
	}
	daemon.Close()
	if err := undoLink(ctx, directory, state); err != nil {
		fmt.Fprintln(os.Stderr, "tsn-cni:", err)
	}
	if err := undoIPAM(ctx, directory, state); err != nil {
		fmt.Fprintln(os.Stderr, "tsn-cni:", err)
	}
	if err := directory.Remove(args.ContainerID, args.IfName); err != nil {
		return stateFault(directory, err)
	}
	return nil
}

// GuessedIPAM has some range, where host-local's were the node's: its DEL looks for the container alone, but asks for one.
func guessedIPAM(ipam *cnistate.IPAM) *cnistate.IPAM {
	if ipam == nil || ipam.Type != "host-local" {
		return ipam
	}
	var conf struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	if json.Unmarshal(ipam.Config, &conf) != nil || hasRanges(conf.IPAM) {
		return ipam
	}
	filled, err := withIPAMField(ipam.Config, conf.IPAM, "ranges", [][]map[string]string{{{"subnet": "192.0.2.0/24"}}})
	if err == nil {
		ipam.Config = filled
	}
	return ipam
}

func guessedState(args *skel.CmdArgs, runDir string) *cnistate.State {
	state := freshState(args, &cniconf.Conf{Attachment: &nodepb.Attachment{}}, nodecall.RunDir(runDir))
	state.HostInterface = cnistate.HostInterface(args.ContainerID, args.IfName)
	return state
}

// GC takes back everything of this network that the runtime does not name.
func gc(args *skel.CmdArgs) error {
	given := loosely(args)
	directory := cnistate.Open(given.StateDir)
	ctx := context.Background()
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	// Nothing named and nothing valid are not the same.
	if err := json.Unmarshal(args.StdinData, &conf); err != nil || conf.Valid == nil {
		return failure(types.ErrInvalidNetworkConfig,
			"cni.dev/valid-attachments: missing or no list; expected [] or [{\"containerID\": …, \"ifname\": …}]: nothing is taken back")
	}
	valid := map[string]bool{}
	for _, attachment := range conf.Valid {
		if attachment.ContainerID == "" || attachment.IfName == "" {
			return failure(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments: an entry without containerID or ifname: nothing is taken back")
		}
		valid[cnistate.AttachmentName(attachment.ContainerID, attachment.IfName)] = true
	}
	states, err := directory.List()
	var faults []error
	if err != nil {
		fmt.Fprintln(os.Stderr, "tsn-cni:", err) // broken files, perhaps of other networks: DEL removes them
	}
	for _, state := range states {
		if state.Network == given.Name && !valid[state.Attachment] {
			faults = append(faults, collect(ctx, directory, state))
		}
	}
	payOwed(ctx, directory, nodecall.RunDir(given.RunDir), "", "")
	if given.IPAM != nil {
		// Plugins from before 1.1 know no GC; DEL of each attachment has given its addresses back.
		_ = invoke.DelegateGC(ctx, given.IPAM.Type, args.StdinData, nil)
	}
	if err := errors.Join(faults...); err != nil {
		return failure(types.ErrTryAgainLater, "%v", err)
	}
	return nil
}

// Collect undoes one state, unless a run of the plugin works on it or has finished meanwhile.
func collect(ctx context.Context, directory cnistate.Directory, state *cnistate.State) error {
	unlock, err := directory.TryLock(state.ContainerID, state.IfName)
	if errors.Is(err, cnistate.ErrBusy) {
		return nil
	} else if err != nil {
		return err
	}
	defer unlock()
	now, err := directory.Load(state.ContainerID, state.IfName)
	if err != nil || now == nil {
		return err
	}
	return undo(ctx, directory, now)
}
