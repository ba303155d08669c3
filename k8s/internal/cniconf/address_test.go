// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"errors"
	"slices"
	"testing"
)

// Every way in which a pod may name an address, in every spelling that encoding/json takes for the name.
func TestAPodChoosesNoAddress(t *testing.T) {
	const static = `,"ipam":{"type":"static","addresses":[{"address":"10.99.1.5/24"}]}`
	for _, row := range []struct{ fields, args, path string }{
		{static + `,"args":{"cni":{"ips":["10.99.1.77/24"]}}`, "", "args.cni.ips"},
		{static + `,"args":{"cni":{"IPs":["10.99.1.77/24"]}}`, "", "args.cni.IPs"},
		{static + `,"args":{"cni":{"ip\u017f":["10.99.1.77/24"]}}`, "", "args.cni.ip\u017f"},
		{static + `,"args":{"cni":{"ips":"10.99.1.77/24"}}`, "", "args.cni.ips"},
		{static, "IgnoreUnknown=1;IP=10.99.1.77/24", "CNI_ARGS.IP"},
		{static, "GATEWAY=10.99.1.1", "CNI_ARGS.GATEWAY"},
		{`,"ipam":{"type":"static"},"args":{"cni":{"ips":["10.99.1.77/24"]}}`, "", "args.cni.ips"},
		{`,"ipam":{"type":"whereabouts"}`, "IP=10.99.1.77", "CNI_ARGS.IP"},
		// What only runtimeConfig may say.
		{static + `,"capabilities":{"ips":true},"args":{"cni":{"ips":["10.99.1.77/24"]}}`, "", "args.cni.ips"},
		{static + `,"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.99.1.77/24"]}`, "", ""},
		// No choice, or one that is not for this IPAM.
		{static + `,"args":{"cni":{"ips":[ ],"late":"drop"}}`, "IP=;GATEWAY=", ""},
		{`,"ipam":{"type":"host-local","subnet":"10.99.1.0/24"},"args":{"cni":{"ips":["10.99.1.77"]}}`, "IP=10.99.1.77", ""},
		{`,"args":{"cni":{"ips":["10.99.1.77/24"]}}`, "IP=10.99.1.77", ""},
		{static + `,"prevResult":{"cniVersion":"1.1.0"},"args":{"cni":{"ips":["10.99.1.77/24"]}}`, "", ""},
	} {
		conf, err := Parse([]byte(head+row.fields+"}"), row.args)
		if err != nil {
			t.Fatalf("%s: %v", row.fields, err)
		}
		var found *Error
		switch err := conf.CheckIPAM(); {
		case row.path == "" && err != nil:
			t.Errorf("%s %s: %v", row.fields, row.args, err)
		case row.path != "" && (!errors.As(err, &found) || found.Field != row.path):
			t.Errorf("%s %s: %v, expected an error about %s", row.fields, row.args, err, row.path)
		}
	}
}

func TestAddressesWithoutTheCapabilityAreNotForIPAM(t *testing.T) {
	for fields, expected := range map[string][]string{
		`,"runtimeConfig":{"IPS":["10.99.1.77/24"]}`:                              {"IPS"},
		`,"capabilities":{"ips":false},"runtimeConfig":{"ips":["10.99.1.77/24"]}`: {"ips"},
		`,"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.99.1.77/24"]}`:  nil,
	} {
		conf, err := Parse([]byte(head+fields+"}"), "")
		if err != nil || !slices.Equal(conf.Ungranted(), expected) {
			t.Errorf("%s: %q, %v", fields, conf.Ungranted(), err)
		}
	}
}
