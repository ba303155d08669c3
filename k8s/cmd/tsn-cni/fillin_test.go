// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/nodewire"
)

// A list of MAC addresses is about frames that are neither IP nor ARP: the node's prefixes stay the default of the others.
func TestTheNodesPrefixesStandWhereNoneIsNamed(t *testing.T) {
	node := &nodefile.Node{VxlanDevice: "flannel.1", Uplink: "eth1", CIDRs: []string{"10.99.0.0/16"}}
	for _, test := range []struct{ named, want []string }{
		{nil, []string{"10.99.0.0/16"}},
		{[]string{"01:80:c2:00:00:0e"}, []string{"01:80:c2:00:00:0e", "10.99.0.0/16"}},
		{[]string{"01-80-c2-00-00-0e", "10.0.0.0/8"}, []string{"01-80-c2-00-00-0e", "10.0.0.0/8"}},
		{[]string{"fd00::/8"}, []string{"fd00::/8"}},
	} {
		conf := &cniconf.Conf{Attachment: &nodewire.Attachment{Destinations: slices.Clone(test.named)}}
		fillIn(conf, node)
		if !slices.Equal(conf.Attachment.Destinations, test.want) {
			t.Errorf("%v: %v, want %v", test.named, conf.Attachment.Destinations, test.want)
		}
	}
	if !slices.Equal(node.CIDRs, []string{"10.99.0.0/16"}) {
		t.Errorf("the node's own list has changed: %v", node.CIDRs)
	}
}
