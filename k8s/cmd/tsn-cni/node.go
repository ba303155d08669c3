// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// readNode reads the node agent's file; nil where there is none.
func readNode(runDir string) (*nodefile.Node, error) {
	found, err := nodefile.Read(filepath.Join(runDir, nodefile.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, failure(types.ErrTryAgainLater, "%v (the node agent writes it)", err)
	}
	return &found, nil
}

// needsNode is true when host-local has no ranges: only the node's file has them.
func needsNode(conf *cniconf.Conf) bool {
	return conf.IPAMType == "host-local" && !hasRanges(conf.IPAM)
}

func hasRanges(ipam json.RawMessage) bool {
	var given struct {
		Ranges []json.RawMessage `json:"ranges"`
		Subnet string            `json:"subnet"`
	}
	return json.Unmarshal(ipam, &given) == nil && (len(given.Ranges) > 0 || given.Subnet != "")
}

// fillIn sets overlay, uplink and destinations from the node's file where the configuration has none, for an interface that tsn-cni makes.
func fillIn(conf *cniconf.Conf, node *nodefile.Node) {
	a := conf.Attachment
	if node == nil || conf.IsChained() || a.Has("overlay") || node.VxlanDevice == "" {
		return
	}
	a.Set("overlay", map[string]any{"vxlan": map[string]string{"learn_from": node.VxlanDevice}})
	if !a.Has("uplink") && node.Uplink != "" {
		a.Set("uplink", node.Uplink)
	}
	// All pods of the TSN network, those of this node too. MAC addresses are for frames that are neither IP nor ARP. A list that is wrong
	// stays as it is, for ktsnd to refuse.
	destinations := a.Read().Destinations
	isWrong := a.Has("destinations") && len(destinations) == 0
	if !isWrong && !slices.ContainsFunc(destinations, isPrefix) && len(node.CIDRs) > 0 {
		a.Set("destinations", slices.Concat(destinations, node.CIDRs))
	}
}

// isPrefix is true for a destination that is not a MAC address; ktsnd checks the prefix.
func isPrefix(destination string) bool {
	_, err := net.ParseMAC(destination)
	return err != nil
}

// mtuOf returns the MTU of the pod's interface: as configured, else that of the overlay's device, else the node's.
func mtuOf(conf *cniconf.Conf, node *nodefile.Node) int {
	if conf.MTU != 0 {
		return conf.MTU
	}
	vxlan := conf.Attachment.Read().Overlay.VXLAN
	if vxlan == nil {
		return 0
	}
	for _, device := range []string{vxlan.LearnFrom, vxlan.Device} {
		if device == "" {
			continue
		}
		if mtu := podlink.MTUOf(device); mtu != 0 {
			return mtu
		}
	}
	if node != nil {
		return node.MTU
	}
	return 0
}

// ipamInput is the standard input of the IPAM plugin: tsn-cni's own, without addresses that the network does not grant, and with the node's
// prefixes where host-local has no ranges.
func ipamInput(stdin []byte, conf *cniconf.Conf, node *nodefile.Node) ([]byte, error) {
	stdin, err := withoutUngranted(stdin, conf.Ungranted())
	if err != nil {
		return nil, err
	}
	if !needsNode(conf) {
		return stdin, nil
	}
	if node == nil || !node.Ready || len(node.Prefixes) == 0 {
		reason := "no " + nodefile.Name + " in ktsnd's run directory: does the node agent run?"
		if node != nil {
			reason = "the node agent is not ready: " + node.Reason
		}
		return nil, failure(types.ErrTryAgainLater, "ipam: host-local has no ranges and this node's prefixes are not known: %s", reason)
	}
	for _, prefix := range node.Prefixes {
		if _, _, err := net.ParseCIDR(prefix); err != nil {
			return nil, failure(types.ErrTryAgainLater, "%s: prefixes: %v (the node agent writes it)", nodefile.Name, err)
		}
	}
	return withRanges(stdin, conf.IPAM, leaseName, node.Prefixes)
}

func withoutUngranted(stdin []byte, names []string) ([]byte, error) {
	if len(names) == 0 {
		return stdin, nil
	}
	var outer map[string]json.RawMessage
	var runtime map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(stdin, &outer), json.Unmarshal(outer["runtimeConfig"], &runtime)); err != nil {
		return nil, fmt.Errorf("runtimeConfig: %w", err)
	}
	for _, name := range names {
		delete(runtime, name)
	}
	var err error
	if outer["runtimeConfig"], err = json.Marshal(runtime); err != nil {
		return nil, err
	}
	return json.Marshal(outer)
}

// The name under which host-local keeps the leases of a node's prefixes. It keeps them by the network's: two networks with the same prefixes
// would give out the same addresses. No network has this name by accident.
const leaseName = "ktsn.io-node"

// withRanges sets host-local's ranges and the name of their leases; the rest stays.
func withRanges(stdin []byte, ipam json.RawMessage, name string, prefixes []string) ([]byte, error) {
	ranges := make([][]map[string]string, 0, len(prefixes))
	for _, prefix := range prefixes {
		ranges = append(ranges, []map[string]string{{"subnet": prefix}})
	}
	var outer, inner map[string]any
	if err := errors.Join(json.Unmarshal(stdin, &outer), json.Unmarshal(ipam, &inner)); err != nil {
		return nil, fmt.Errorf("ipam: %w", err)
	}
	inner["ranges"] = ranges
	outer["name"], outer["ipam"] = name, inner
	return json.Marshal(outer)
}
