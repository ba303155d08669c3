// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// Attachments that a runtime names as valid, by the name that they have at ktsnd.
type attachments map[string]bool

// GC takes back everything of this network that the runtime does not name.
func gc(args *skel.CmdArgs) error {
	given := loosely(args)
	directory := cnistate.Open(given.StateDir)
	ctx := context.Background()
	valid, err := validOf(args.StdinData)
	if err != nil {
		return err
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
	payOwed(ctx, directory, nodeapi.RunDir(given.RunDir), "", "")
	if given.IPAM != nil {
		faults = append(faults, collectLeases(ctx, directory, given, valid), gcOfIPAM(ctx, args, given.IPAM.Type))
	}
	if err := errors.Join(faults...); err != nil {
		return failure(types.ErrTryAgainLater, "%v", err)
	}
	return nil
}

// ValidOf: nothing named and nothing valid are not the same.
func validOf(stdin []byte) (attachments, error) {
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil || conf.Valid == nil {
		return nil, failure(types.ErrInvalidNetworkConfig,
			"cni.dev/valid-attachments: missing or no list; expected [] or [{\"containerID\": …, \"ifname\": …}]: nothing is taken back")
	}
	valid := attachments{}
	for _, attachment := range conf.Valid {
		if attachment.ContainerID == "" || attachment.IfName == "" {
			return nil, failure(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments: an entry without containerID or ifname: nothing is taken back")
		}
		valid[cnistate.AttachmentName(attachment.ContainerID, attachment.IfName)] = true
	}
	return valid, nil
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

// Codes by which IPAM plugins from before CNI 1.1 say that they do not know a verb without a container.
var unknownVerb = []uint{types.ErrIncompatibleCNIVersion, types.ErrUnknownContainer, types.ErrInvalidEnvironmentVariables}

// GCOfIPAM hands the verb on, as the specification asks for.
func gcOfIPAM(ctx context.Context, args *skel.CmdArgs, plugin string) error {
	err := invoke.DelegateGC(ctx, plugin, args.StdinData, nil)
	var cni *types.Error
	if err == nil || (errors.As(err, &cni) && slices.Contains(unknownVerb, cni.Code)) {
		return nil
	}
	return ipamFault(plugin, err)
}

// CollectLeases gives back what host-local, which knows no GC, has leased to interfaces that the runtime does not name and that have no
// state: their state was lost, and only the lease still has the address. Leases of other IPAM plugins are theirs to collect.
func collectLeases(ctx context.Context, directory cnistate.Directory, given loose, valid attachments) error {
	if given.IPAM.Type != "host-local" {
		return nil
	}
	var faults []error
	for _, ipam := range guessedIPAM(given.IPAM) {
		var conf struct {
			Name string `json:"name"`
			IPAM struct {
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		}
		if err := json.Unmarshal(ipam.Config, &conf); err != nil {
			return fmt.Errorf("ipam: %w", err)
		}
		if conf.IPAM.DataDir == "" {
			conf.IPAM.DataDir = "/var/lib/cni/networks"
		}
		leases, err := leasesIn(filepath.Join(conf.IPAM.DataDir, conf.Name))
		faults = append(faults, err)
		for name, lease := range leases {
			if !valid[name] {
				lease.IPAM, lease.RunDir = ipam, nodeapi.RunDir(given.RunDir)
				faults = append(faults, collectLease(ctx, directory, lease, conf.Name != given.Name))
			}
		}
	}
	return errors.Join(faults...)
}

// LeasesIn one folder of host-local: a file for each address, with the container and, below it, the interface.
func leasesIn(folder string) (map[string]*cnistate.State, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ipam: %w", err)
	}
	found := map[string]*cnistate.State{}
	for _, entry := range entries {
		if name := entry.Name(); name == "lock" || strings.HasPrefix(name, "last_reserved_ip") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			continue // given back meanwhile
		}
		// Without an interface it is of a host-local from before 0.8, and does not say of which interface.
		container, ifName, given := strings.Cut(strings.TrimSpace(string(content)), "\n")
		container, ifName = strings.TrimSpace(container), strings.TrimSpace(ifName)
		if given && container != "" && ifName != "" {
			name := cnistate.AttachmentName(container, ifName)
			found[name] = &cnistate.State{ContainerID: container, IfName: ifName, Attachment: name, HostInterface: cnistate.HostInterface(container, ifName)}
		}
	}
	return found, nil
}

// collectLease takes back what it finds by the names alone, unless a run of the plugin works on it or it has a state. Where several networks
// share the leases the runtime has named those of one: an interface that is there is another one's.
func collectLease(ctx context.Context, directory cnistate.Directory, lease *cnistate.State, isShared bool) error {
	unlock, err := directory.TryLock(lease.ContainerID, lease.IfName)
	if errors.Is(err, cnistate.ErrBusy) {
		return nil
	} else if err != nil {
		return err
	}
	defer unlock()
	state, err := directory.Load(lease.ContainerID, lease.IfName)
	if state != nil || errors.Is(err, cnistate.ErrBroken) {
		return nil
	}
	if err != nil || (isShared && podlink.MTUOf(lease.HostInterface) != 0) {
		return err
	}
	detachGuessed(ctx, lease)
	return errors.Join(undoAddresses(ctx, directory, lease), undoIPAM(ctx, directory, lease), undoLink(ctx, directory, lease))
}
