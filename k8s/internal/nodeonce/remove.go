// SPDX-License-Identifier: Apache-2.0

package nodeonce

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/forwardrules"
	"ktsn.io/ktsn/k8s/internal/install"
)

// leases is the name under which tsn-cni lets host-local keep the leases of the node's prefixes.
const leases = "ktsn.io-node"

// Patience is how long states of interfaces are waited for: the runtime deletes a pod's after the API has forgotten the pod.
var Patience = 10 * time.Second

// Remove takes KTSN off this node; a line `left: …` for each thing that stays, with why. While interfaces of pods are there, their
// states stay, and what these pods need to be deleted and their containers to be started again: tsn-cni, the library, the run directory.
func Remove(ctx context.Context, c Config) (lines []string) {
	left := func(what string, err error) {
		if err != nil {
			lines = append(lines, fmt.Sprintf("left: %s: %v", what, err))
		}
	}
	// A state that cannot be read may be a pod's.
	states, err := c.states()
	if !c.All {
		left(c.CNIStateDir, err)
	}
	_, errRules := forwardrules.New(c.VXLANDevice).Remove(ctx)
	left("rules of the packet filter", errRules)
	left(c.VXLANDevice, removeLink(c.VXLANDevice, "vxlan"))
	endpoint := strings.ReplaceAll(c.Resource, "/", "-") + ".sock"
	left("the device plugin's socket", missingOK(os.Remove(filepath.Join(c.KubeletDir, "device-plugins", endpoint))))
	if (len(states) > 0 || err != nil) && !c.All {
		return append(lines, fmt.Sprintf("left: %d interfaces of pods are attached: tsn-cni, its states, %s and %s stay until they are gone",
			len(states), c.LibDir, c.RunDir))
	}
	for _, state := range states {
		left("an interface", removeLink(cnistate.HostInterface(state.ContainerID, state.IfName), "veth"))
	}
	left(install.Plugin, missingOK(os.Remove(filepath.Join(c.CNIBinDir, install.Plugin))))
	for _, directory := range []string{c.CNIStateDir, filepath.Join(c.LeaseDir, leases), c.LibDir, c.RunDir} {
		left(directory, removeTree(directory))
	}
	return lines
}

// states of interfaces, once those that are being deleted are gone.
func (c Config) states() ([]*cnistate.State, error) {
	for end := time.Now().Add(Patience); ; time.Sleep(100 * time.Millisecond) {
		states, err := cnistate.Open(c.CNIStateDir).List()
		if err != nil || len(states) == 0 || time.Now().After(end) {
			return states, err
		}
	}
}

// removeTree refuses what cannot be a directory of ours.
func removeTree(path string) error {
	if !filepath.IsAbs(path) || strings.Count(filepath.Clean(path), "/") < 2 {
		return fmt.Errorf("%q is no directory of KTSN's: it is not removed", path)
	}
	return os.RemoveAll(path)
}

func missingOK(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// removeLink removes a device, if it is there and of this kind.
func removeLink(name, kind string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil
	case err != nil:
		return err
	case link.Type() != kind:
		return fmt.Errorf("it is no %s but %s, and not ours", kind, link.Type())
	}
	return netlink.LinkDel(link)
}
