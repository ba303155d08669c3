// SPDX-License-Identifier: Apache-2.0

// Package cniconf reads the input of tsn-cni.
//
// In: the network's configuration (standard input) and CNI_ARGS. Out: a Conf, or an *Error that names the wrong field. It checks the
// fields that tsn-cni itself defines, and passes those of the attachment on: ktsnd checks them. It opens no file, no socket and no link.
package cniconf

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Octets of the longest configuration.
const octetsMax = 1 << 20

// AskAnnotation is the annotation by which a pod asks for the attachment; `true` or `false`.
const AskAnnotation = "ktsn.io/attach"

// ReceiveAnnotation is the annotation by which a pod says how its programs wait for frames: `expect` or `kernel`. It takes what the
// network's configuration leaves to it (`receive`).
const ReceiveAnnotation = "ktsn.io/receive"

// PeriodAnnotation is the annotation by which a pod states the period of what it receives, a time with its unit. ktsnd judges it.
const PeriodAnnotation = "ktsn.io/receive-period"

// AskArgument is the name in CNI_ARGS by which a pod asks for the attachment.
const AskArgument = "KTSN_ATTACH"

// AnnotationsCapability is the capability by which containerd passes a pod's annotations (runtimeConfig).
const AnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// Pod as the runtime names it in CNI_ARGS; empty outside Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Conf is a network's configuration with the pod's own fields.
type Conf struct {
	CNIVersion string
	Name       string // of the network
	IPAM       json.RawMessage
	IPAMType   string // empty: no addresses
	MTU        int    // 0: that of the overlay's device
	MAC        net.HardwareAddr
	Attach     string // all, asked, or empty: all where tsn-cni makes the interface, asked in a chain
	Asked      *bool  // whether the pod asks for the attachment; nil: it says nothing
	Policies   string // agent or ignore
	RunDir     string // ktsnd's; empty: KTSN_RUN_DIR, /run/ktsn
	StateDir   string // empty: KTSN_CNI_STATE_DIR, /var/lib/cni/ktsn
	DeviceID   string // of the device plugin, as Multus found it
	DNS        types.DNS
	PrevResult json.RawMessage // not empty: chained behind another plugin
	Pod        Pod
	Attachment Attachment // without name, netns and interface

	receive string // what the pod says by ReceiveAnnotation; empty: nothing
	// periodPath is where PeriodAnnotation was read; empty: nowhere.
	periodPath string
	byPod      []string // fields of Attachment that the pod has set
	macGiven   bool     // by the network's configuration
	chosen     string   // where the pod chooses an address by args.cni or CNI_ARGS; empty: nowhere
	ungranted  []string // names in runtimeConfig
}

// IsChained is true when another plugin made the interface.
func (c *Conf) IsChained() bool { return len(c.PrevResult) > 0 }

// IsWanted is true when this pod gets an attachment.
func (c *Conf) IsWanted() bool {
	switch {
	case c.Attach == "all":
		return true
	case c.Attach == "" && !c.IsChained():
		return c.Asked == nil || *c.Asked
	}
	return c.Asked != nil && *c.Asked
}

// Parse reads the configuration. `args` is CNI_ARGS.
func Parse(stdin []byte, args string) (*Conf, error) {
	if len(stdin) > octetsMax {
		return nil, fault("configuration", "%d octets; at most %d", len(stdin), octetsMax)
	}
	c := &Conf{Policies: "agent", Attachment: Attachment{}}
	var capabilities map[string]bool
	var argument, runtime json.RawMessage
	own := fields{
		"cniVersion":    text(&c.CNIVersion),
		"name":          text(&c.Name),
		"type":          pass,
		"capabilities":  func(path string, raw json.RawMessage) (err error) { capabilities, err = capable(path, raw); return },
		"runtimeConfig": keep(&runtime),
		"args":          keep(&argument),
		"prevResult":    keep(&c.PrevResult),
		"ipam":          c.ipam,
		"dns":           c.dns,
		"deviceID":      text(&c.DeviceID),
		"pciBusID":      pass, // Multus writes deviceID twice
		"mtu":           c.mtu,
		"mac":           c.mac,
		"attach":        word(&c.Attach, "all", "asked"),
		"policies":      word(&c.Policies, "agent", "ignore"),
		"run_dir":       absolute(&c.RunDir),
		"state_dir":     absolute(&c.StateDir),
	}
	if err := own.object("", stdin, c.configured); err != nil {
		return nil, err
	}
	c.macGiven = c.MAC != nil
	if err := c.environment(args); err != nil {
		return nil, err
	}
	if err := c.arguments(argument); err != nil {
		return nil, err
	}
	if err := c.runtime(runtime, capabilities); err != nil {
		return nil, err
	}
	c.resolveReceive()
	return c, nil
}

func (c *Conf) mtu(path string, raw json.RawMessage) (err error) {
	const expected = "a whole number from 68 to 65535"
	c.MTU, err = exactly[int](path, raw, expected)
	if err == nil && (c.MTU < 68 || c.MTU > 65535) {
		return fault(path, "%s; expected %s", shown(raw), expected)
	}
	return err
}

func keep(to *json.RawMessage) decoder {
	return func(path string, raw json.RawMessage) error {
		if string(raw) == "null" {
			return nil
		}
		*to = raw
		_, err := objectOf(path, raw)
		return err
	}
}

func absolute(to *string) decoder {
	return func(path string, raw json.RawMessage) error {
		if err := text(to)(path, raw); err != nil {
			return err
		}
		if !strings.HasPrefix(*to, "/") {
			return fault(path, "%s; expected an absolute path", shown(raw))
		}
		return nil
	}
}

func capable(path string, raw json.RawMessage) (map[string]bool, error) {
	const expected = `an object as in { "mac": true }`
	found, err := exactly[map[string]bool](path, raw, expected)
	known := []string{"deviceID", AnnotationsCapability, "ips", "mac"}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name] && !slices.Contains(known, name) {
			return nil, fault(join(path, name), "tsn-cni has no such capability; it has %s", strings.Join(known, ", "))
		}
	}
	return found, err
}

func (c *Conf) ipam(path string, raw json.RawMessage) error {
	values, err := objectOf(path, raw)
	if err != nil {
		return err
	}
	if len(values) == 0 {
		return nil
	}
	kind, given := values["type"]
	if !given {
		return fault(join(path, "type"), "missing; expected the name of an IPAM plugin, as in host-local")
	}
	if err := text(&c.IPAMType)(join(path, "type"), kind); err != nil {
		return err
	}
	if strings.ContainsAny(c.IPAMType, "/\x00") {
		return fault(join(path, "type"), "%s; expected the name of an IPAM plugin, not a path", shown(kind))
	}
	c.IPAM = raw
	return nil
}

func (c *Conf) dns(path string, raw json.RawMessage) (err error) {
	c.DNS, err = exactly[types.DNS](path, raw, "nameservers, domain, search and options")
	return err
}

func (c *Conf) mac(path string, raw json.RawMessage) error {
	value, err := exactly[string](path, raw, "a MAC address")
	if err != nil {
		return err
	}
	return c.hardware(path, value)
}

// hardware takes the Ethernet address of one station.
func (c *Conf) hardware(path, value string) error {
	address, err := net.ParseMAC(value)
	if err != nil || len(address) != 6 || address[0]&1 != 0 || slices.Max(address) == 0 {
		return fault(path, "%.60q; expected the MAC address of one station, as in 02:00:00:00:00:07", value)
	}
	c.MAC = address
	return nil
}

func (c *Conf) ask(path, value string) error {
	wanted, err := strconv.ParseBool(value)
	if err != nil || (value != "true" && value != "false") {
		return fault(path, "%.60q; expected true or false", value)
	}
	c.Asked = &wanted
	return nil
}

// CheckChain refuses fields that have no meaning behind another plugin. Only ADD calls it: later verbs always bring a prevResult.
func (c *Conf) CheckChain() error {
	if !c.IsChained() {
		return nil
	}
	for _, field := range []struct {
		name  string
		given bool
	}{{"ipam", c.IPAMType != ""}, {"mac", c.macGiven}, {"mtu", c.MTU != 0}, {"dns", len(c.DNS.Nameservers) > 0}} {
		if field.given {
			return fault(field.name, "has no meaning behind another plugin: tsn-cni attaches that plugin's interface unchanged; remove it")
		}
	}
	return nil
}
