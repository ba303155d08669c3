// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"strings"
)

// boundIPAM is the IPAM plugin that takes a pod's wish only out of the network's own ranges.
const boundIPAM = "host-local"

// CheckIPAM refuses an address that the pod chooses for itself, by args.cni or CNI_ARGS: an IPAM plugin such as static would give it instead
// of the network's. The network grants a choice by the capability ips. Only ADD calls it.
func (c *Conf) CheckIPAM() error {
	if c.IPAMType == "" || c.IPAMType == boundIPAM || c.IsChained() || c.chosen == "" {
		return nil
	}
	return fault(c.chosen, `a pod may not choose its address from IPAM %s; remove it, or grant the choice in the network's configuration by `+
		`"capabilities": { "ips": true }`, c.IPAMType)
}

// choose notes a wish of the pod. IPAM plugins read the names of JSON objects in any case.
func (c *Conf) choose(path, name string, raw json.RawMessage) {
	if !strings.EqualFold(name, "ips") {
		return
	}
	switch strings.Join(strings.Fields(string(raw)), "") {
	case "null", "[]":
	default:
		c.chosen = path
	}
}

// Ungranted returns the names in runtimeConfig of addresses without the capability ips: they are not for IPAM.
func (c *Conf) Ungranted() []string { return c.ungranted }
