// SPDX-License-Identifier: Apache-2.0

// Package nodeonce is what `ktsn k8s` runs once on each node: Probe says whether the node can have KTSN, Remove takes KTSN off it.
//
// In: the node's directories and devices. Out: lines `fault: …`, `note: …`, `left: …` on standard output and as the pod's termination
// message, which the API server keeps. Probe changes nothing on the node: what it tries, it tries in a network namespace of its own.
package nodeonce

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/command"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Message is where kubelet finds a container's last words, and MessageMax their length.
const (
	Message    = "/dev/termination-log"
	MessageMax = 4096
)

// Config is what the command line says.
type Config struct {
	RunDir, LibDir, CNIBinDir, CNIStateDir, KubeletDir string
	// LeaseDir is where host-local keeps its leases.
	LeaseDir    string
	VXLANDevice string
	Resource    string
	CIDRs       []netip.Prefix
	// All removes states of interfaces too: no pod is attached any more.
	All bool
}

const help = `ktsn-node-agent %s: %s

ktsn k8s runs it in a pod on each node. The directories are the node's, at the same paths.

Flags:
`

// Verbs of this package, with what they do.
var Verbs = map[string]string{
	"probe":  "says whether this node can have KTSN, and changes nothing",
	"remove": "takes KTSN off this node",
}

// Parse reads the arguments after the verb.
func Parse(verb string, arguments []string, environment func(string) string, output io.Writer) (Config, error) {
	c := Config{}
	set := command.NewLine("ktsn-node-agent "+verb, fmt.Sprintf(help, verb, Verbs[verb]), environment, output)
	set.StringVar(&c.RunDir, "run-dir", nodeapi.DefaultRunDir, "ktsnd's run `directory`")
	set.StringVar(&c.LibDir, "lib-dir", "/var/lib/ktsn", "`directory` of libktsn.so's versions and all else that is kept")
	set.StringVar(&c.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "`directory` of CNI plugins")
	set.StringVar(&c.CNIStateDir, "cni-state-dir", cnistate.DefaultDirectory, "`directory` of tsn-cni's states")
	set.StringVar(&c.LeaseDir, "lease-dir", "/var/lib/cni/networks", "`directory` of host-local's leases")
	set.StringVar(&c.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `directory`")
	set.StringVar(&c.VXLANDevice, "vxlan-device", "ktsn.1", "`name` of the VXLAN device")
	set.StringVar(&c.Resource, "resource", "ktsn.io/tsn", "extended resource that pods ask for")
	set.BoolVar(&c.All, "all", false, "remove: states of interfaces too, as no pod is attached any more")
	cidrs := set.String("tsn-cidr", "", "probe: the TSN network's `prefixes`")
	if _, err := set.Read(arguments); err != nil {
		return c, err
	}
	if *cidrs == "" {
		return c, nil
	}
	var err error
	c.CIDRs, err = overlaynet.ParsePrefixes("--tsn-cidr", *cidrs)
	return c, err
}

// Say writes lines where a person and kubelet find them.
func Say(lines []string, output io.Writer, message string) error {
	text := strings.Join(lines, "\n") + "\n"
	if _, err := io.WriteString(output, text); err != nil {
		return err
	}
	if len(text) > MessageMax {
		text = text[:MessageMax]
	}
	if _, err := os.Stat(message); err != nil {
		return nil // not started by kubelet
	}
	return os.WriteFile(message, []byte(text), 0o600)
}
