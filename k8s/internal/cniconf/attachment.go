// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"fmt"
	"math"

	"ktsn.io/ktsn/k8s/internal/nodewire"
)

// What a pod may say about its own attachment, by the NetworkAttachmentDefinition's arguments: nothing that widens
// what the network's configuration grants.
var podFields = []string{"capture_priority", "late", "overrun_limit", "take"}

// AttachmentFields are those of docs/interfaces.md, by the same words; values are ktsnd's to judge, shapes are ours.
// Zero means "default" in the message, so a zero that somebody wrote is refused where it is not the default itself.
func attachmentFields(a *nodewire.Attachment, overlayGiven *bool) fields {
	return fields{
		"addresses": func(path string, raw json.RawMessage) error { return addresses(path, raw, a) },
		"uplink":    text(&a.Uplink),
		"overlay": func(path string, raw json.RawMessage) error {
			*overlayGiven = true
			return overlay(path, raw, a)
		},
		"ingress":             text(&a.Ingress),
		"take":                func(path string, raw json.RawMessage) error { return take(path, raw, a) },
		"destinations":        list(&a.Destinations, "prefixes or MAC addresses"),
		"ethernet":            text(&a.Ethernet),
		"classes":             list(&a.Classes, "traffic classes, 0 to 7"),
		"late":                text(&a.Late),
		"overrun_limit":       span(&a.OverrunLimitNs),
		"horizon":             span(&a.HorizonNs),
		"capture":             text(&a.Capture),
		"capture_priority":    integer(0, 15, func(v uint32) { a.CapturePriority = v }),
		"allow_tai":           boolean(&a.AllowTai),
		"allow_policy_bypass": boolean(&a.AllowPolicyBypass),
		"vlan":                integer(1, 4094, func(v uint32) { a.Vlan = &v }),
		"pcp":                 integer(0, 7, func(v uint32) { a.Pcp = &v }),
		"slots":               integer(1, math.MaxUint32, func(v uint32) { a.Slots = v }),
		"clients_max":         integer(1, math.MaxUint32, func(v uint32) { a.ClientsMax = v }),
		"octets_max":          integer(1, math.MaxUint64, func(v uint64) { a.OctetsMax = v }),
		"memory_max":          integer(1, math.MaxUint64, func(v uint64) { a.MemoryMax = v }),
	}
}

// Addresses that are given to the attachment, whatever IPAM says; or the word for all that the interface comes to have.
func addresses(path string, raw json.RawMessage, a *nodewire.Attachment) error {
	if string(raw) == `"interface"` {
		a.Addresses = []string{"interface"}
		return nil
	}
	return list(&a.Addresses, `IP addresses and prefixes, or "interface"`)(path, raw)
}

func take(path string, raw json.RawMessage, a *nodewire.Attachment) error {
	least := func(v uint32) { a.TakePriorityMin = &v }
	switch string(raw) {
	case `"txtime"`:
		return nil
	case `"all"`:
		least(0)
		return nil
	}
	if _, err := objectOf(path, raw); err != nil {
		return fault(path, `%s; expected "txtime", "all" or { "priority_min": 0 to 15 }`, shown(raw))
	}
	return fields{"priority_min": integer(0, 15, least)}.object(path, raw, nil)
}

func overlay(path string, raw json.RawMessage, a *nodewire.Attachment) error {
	if string(raw) == `"none"` {
		return nil
	}
	if _, err := objectOf(path, raw); err != nil {
		return fault(path, `%s; expected "none" or { "vxlan": … }`, shown(raw))
	}
	return fields{"vxlan": func(path string, raw json.RawMessage) error {
		a.Vxlan = &nodewire.Vxlan{}
		return vxlan(path, raw, a.Vxlan)
	}}.object(path, raw, nil)
}

func vxlan(path string, raw json.RawMessage, v *nodewire.Vxlan) error {
	return fields{
		"mode":            text(&v.Mode),
		"vni":             integer(1, 1<<24-1, func(n uint32) { v.Vni = n }),
		"port":            integer(1, math.MaxUint16, func(n uint32) { v.Port = n }),
		"local":           text(&v.Local),
		"device":          text(&v.Device),
		"learn_from":      text(&v.LearnFrom),
		"peers":           func(path string, raw json.RawMessage) error { return peers(path, raw, v) },
		"flood":           list(&v.Flood, "addresses of tunnel ends"),
		"flood_interface": boolean(&v.FloodInterface),
		"ttl":             outer(&v.Ttl),
		"tos":             outer(&v.Tos),
		"df":              text(&v.Df),
		"udp_checksum":    boolean(&v.UdpChecksum),
	}.object(path, raw, nil)
}

func peers(path string, raw json.RawMessage, v *nodewire.Vxlan) error {
	var entries []json.RawMessage
	if err := list(&entries, "peers")(path, raw); err != nil {
		return err
	}
	for index, entry := range entries {
		peer := &nodewire.VxlanPeer{}
		known := fields{"prefix": text(&peer.Prefix), "vtep": text(&peer.Vtep), "mac": text(&peer.Mac)}
		if err := known.object(fmt.Sprintf("%s[%d]", path, index), entry, nil); err != nil {
			return err
		}
		v.Peers = append(v.Peers, peer)
	}
	return nil
}

// Outer is a number of the outer header, or the word inherit.
func outer(to *string) decoder {
	return func(path string, raw json.RawMessage) error {
		const expected = "0 to 255 or inherit"
		number, err := exactly[uint8](path, raw, expected)
		if err == nil {
			*to = fmt.Sprint(number)
			return nil
		}
		if string(raw) != `"inherit"` {
			return fault(path, "%s; expected %s", shown(raw), expected)
		}
		*to = "inherit"
		return nil
	}
}
