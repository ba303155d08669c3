// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"slices"
	"testing"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/nodefile"
)

// A list of MAC addresses is about frames that are neither IP nor ARP: the node's prefixes stay the default of the others.
func TestTheNodesPrefixesStandWhereNoneIsNamed(t *testing.T) {
	node := &nodefile.Node{VxlanDevice: "flannel.1", Uplink: "eth1", CIDRs: []string{"10.99.0.0/16"}}
	for named, want := range map[string]string{
		"":                                   `["10.99.0.0/16"]`,
		`["01:80:c2:00:00:0e"]`:              `["01:80:c2:00:00:0e","10.99.0.0/16"]`,
		`["01-80-c2-00-00-0e","10.0.0.0/8"]`: `["01-80-c2-00-00-0e","10.0.0.0/8"]`,
		`["fd00::/8"]`:                       `["fd00::/8"]`,
		// What is wrong stays for ktsnd to refuse.
		`[]`: `[]`, `"10.0.0.0/8"`: `"10.0.0.0/8"`, `[7]`: `[7]`,
	} {
		conf := &cniconf.Conf{Attachment: cniconf.Attachment{}}
		if named != "" {
			conf.Attachment["destinations"] = json.RawMessage(named)
		}
		fillIn(conf, node)
		if found := string(conf.Attachment["destinations"]); found != want {
			t.Errorf("%s: %s, expected %s", named, found, want)
		}
		if read := conf.Attachment.Read(); read.Uplink != "eth1" || read.Overlay.VXLAN == nil || read.Overlay.VXLAN.LearnFrom != "flannel.1" {
			t.Errorf("%s: %+v", named, read)
		}
	}
	given := &cniconf.Conf{Attachment: cniconf.Attachment{"overlay": json.RawMessage(`"none"`)}}
	if fillIn(given, node); given.Attachment.JSON() != `{"overlay":"none"}` {
		t.Errorf("with an overlay of its own: %s", given.Attachment.JSON())
	}
	if !slices.Equal(node.CIDRs, []string{"10.99.0.0/16"}) {
		t.Errorf("the node's own list has changed: %v", node.CIDRs)
	}
}
