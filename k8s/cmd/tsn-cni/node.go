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
	"ktsn.io/ktsn/k8s/internal/nodewire"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// ReadNode gives what the node agent says about this node; nil where no agent has written anything.
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

// NeedsNode: whether the configuration leaves open what only the node's file can fill in.
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

// FillIn puts the node's values where the configuration leaves them open, for an interface of our own: overlay, uplink, destinations.
func fillIn(conf *cniconf.Conf, node *nodefile.Node) {
	a := conf.Attachment
	if node == nil || conf.IsChained() || conf.OverlayGiven || node.VxlanDevice == "" {
		return
	}
	a.Vxlan = &nodewire.Vxlan{LearnFrom: node.VxlanDevice}
	if a.Uplink == "" {
		a.Uplink = node.Uplink
	}
	// All pods of the TSN network, those of this node too. MAC addresses are for frames that are neither IP nor ARP.
	if !slices.ContainsFunc(a.Destinations, isPrefix) {
		a.Destinations = slices.Concat(a.Destinations, node.CIDRs)
	}
}

// Whether a destination is meant as a prefix; ktsnd says what is wrong with it.
func isPrefix(destination string) bool {
	_, err := net.ParseMAC(destination)
	return err != nil
}

// MTUOf the pod's interface: as configured, else that of the overlay's device, else the node's.
func mtuOf(conf *cniconf.Conf, node *nodefile.Node) int {
	if conf.MTU != 0 {
		return conf.MTU
	}
	vxlan := conf.Attachment.Vxlan
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

// IPAMInput is the standard input of the IPAM plugin: ours, with the node's prefixes where host-local is given no ranges.
func ipamInput(stdin []byte, conf *cniconf.Conf, node *nodefile.Node) ([]byte, error) {
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

// The name under which host-local keeps the leases of a node's prefixes. It keeps them by the network's: two networks with the same prefixes
// would give out the same addresses. No network has this name by accident.
const leaseName = "ktsn.io-node"

// WithRanges gives host-local these prefixes, and a name for their leases; the rest stays.
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
