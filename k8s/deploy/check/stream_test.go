// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

const right = `
apiVersion: ktsn.io/v1alpha1
kind: Stream
metadata: {name: axis}
spec:
  talker: {podSelector: {app: talker}, interface-name: net1}
  stream-rank: {rank: 0}
  priority: 6
  data-frame-specification: {destination-ip-address: 10.99.1.2, destination-port: 5000}
  traffic-specification:
    interval: {numerator: 1, denominator: 1000}
    max-frames-per-interval: 1
    max-frame-size: 92
    time-aware: {earliest-transmit-offset: 0, latest-transmit-offset: 20000}
  user-to-network-requirements: {max-latency: 500000}
status:
  status-info: {talker-status: ready, failure-code: 0}
  nodes: [{name: a, podCount: 1, traffic-class: 6, state: Accepted, reason: Accepted, message: text, applied: true, appliedSince: "2026-11-21T20:00:00Z"}]
`

// wrongStreams: `to` instead of `from`, and what is said; empty: nothing.
var wrongStreams = []struct{ from, to, want string }{
	{"", "", ""},
	{"10.99.1.2", "fd99::2", ""},
	{"  stream-rank: {rank: 0}\n", "", ""},
	{"    time-aware: {earliest-transmit-offset: 0, latest-transmit-offset: 20000}\n", "", ""},
	{"  user-to-network-requirements: {max-latency: 500000}\n", "", ""},
	{"numerator: 1, denominator: 1000", "numerator: 10, denominator: 1", ""},
	{"numerator: 1, denominator: 1000", "numerator: 4294967295, denominator: 4294967295", ""},

	{"name: axis", "name: " + strings.Repeat("a", 64), "metadata.name: Too long"},
	{"spec:", "spac:", "spec: Required value"},
	{"{podSelector: {app: talker}, interface-name: net1}", "{}", "spec.talker.podSelector: Required value"},
	{"{app: talker}", "{}", "podSelector: Invalid value"},
	{"{app: talker}", "{app: " + strings.Repeat("a", 64) + "}", "podSelector.app: Too long"},
	{"{app: talker}", "{app: 7}", "podSelector.app: Invalid value"},
	{"interface-name: net1", "interface-name: a/b", "interface-name: Invalid value"},
	{"interface-name: net1", "interface-name: averylonginterface", "interface-name: Too long"},
	{"rank: 0", "rank: 2", "stream-rank.rank: Invalid value: 2"},
	{"rank: 0", "rang: 0", "stream-rank.rank: Required value"},
	{"  priority: 6\n", "", "spec.priority: Required value"},
	{"priority: 6", "priority: 16", "priority: Invalid value: 16"},
	{"priority: 6", "priority: high", "priority: Invalid value"},
	{"10.99.1.2", "10.99.1", "expected the unicast address of a listener"},
	{"10.99.1.2", "10.99.1.2/24", "expected the unicast address of a listener"},
	{"10.99.1.2", "239.1.2.3", "expected the unicast address of a listener"},
	{"10.99.1.2", "127.0.0.1", "expected the unicast address of a listener"},
	{"10.99.1.2", "0.0.0.0", "expected the unicast address of a listener"},
	{"10.99.1.2", "fe80::1", "expected the unicast address of a listener"},
	{"10.99.1.2", "listener.plant", "expected the unicast address of a listener"},
	{"destination-port: 5000", "destination-port: 0", "destination-port: Invalid value: 0"},
	{"destination-port: 5000", "destination-port: 65536", "destination-port: Invalid value: 65536"},
	{", destination-port: 5000", "", "destination-port: Required value"},
	{"numerator: 1,", "numerator: 0,", "interval.numerator: Invalid value: 0"},
	{"denominator: 1000", "denominator: 0", "interval.denominator: Invalid value: 0"},
	{"denominator: 1000", "denominator: 1024", "expected a whole number of ns"},
	{"denominator: 1000", "denominator: 200000", "expected 10000 ns (1/100000) to 10 s"},
	{"numerator: 1, denominator: 1000", "numerator: 11, denominator: 1", "expected 10000 ns (1/100000) to 10 s"},
	{"numerator: 1, denominator: 1000", "numerator: 4294967296, denominator: 1", "interval.numerator: Invalid value"},
	{"max-frames-per-interval: 1", "max-frames-per-interval: 0", "max-frames-per-interval: Invalid value: 0"},
	{"max-frames-per-interval: 1", "max-frames-per-interval: 65536", "max-frames-per-interval: Invalid value: 65536"},
	{"    max-frames-per-interval: 1\n", "", "max-frames-per-interval: Required value"},
	{"max-frame-size: 92", "max-frame-size: 27", "max-frame-size: Invalid value: 27"},
	{"max-frame-size: 92", "max-frame-size: 9217", "max-frame-size: Invalid value: 9217"},
	{"earliest-transmit-offset: 0", "earliest-transmit-offset: -1", "earliest-transmit-offset: Invalid value: -1"},
	{"earliest-transmit-offset: 0, ", "", "earliest-transmit-offset: Required value"},
	{"earliest-transmit-offset: 0", "earliest-transmit-offset: 20001", "expected earliest-transmit-offset up to latest-transmit-offset"},
	{"latest-transmit-offset: 20000", "latest-transmit-offset: 1000000", "expected latest-transmit-offset within the interval"},
	{"max-latency: 500000", "max-latency: 0", "max-latency: Invalid value: 0"},
	{"max-latency: 500000", "max-latency: 4294967296", "max-latency: Invalid value"},
	{"max-latency: 500000", "latency: 5", "max-latency: Required value"},
	{"priority: 6", "priority: 6\n  transmission-selection: 0", "no such field"},
	{"talker-status: ready", "talker-status: fine", "talker-status: Unsupported value"},
	{"state: Accepted", "state: Fine", "state: Unsupported value"},
}

// Each field of a Stream wrong in turn, as the API server would tell it. `right` is taken as it stands.
func TestAStreamsFieldsAreChecked(t *testing.T) {
	crd, err := os.ReadFile("../helm/ktsn/crds/streams.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known, err := newSchemas([]helm.Object{{Text: string(crd)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range wrongStreams {
		if !strings.Contains(right, c.from) {
			t.Errorf("%q is not there", c.from)
		}
		faults := strings.Join(known.check("here", strings.Replace(right, c.from, c.to, 1)), "\n")
		if c.want == "" && faults != "" || !strings.Contains(faults, c.want) {
			t.Errorf("%q instead of %q: found %q, want %q", c.to, c.from, faults, c.want)
		}
	}
}

// A definition that the API server would not take is found here.
func TestABadDefinitionIsFound(t *testing.T) {
	good, err := os.ReadFile("../helm/ktsn/crds/streams.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"isIP(self) && ip(self)": "isIP(self) && yp(self)", "scope: Namespaced": "scope: Everywhere", "storage: true": "storage: false",
		"{name: Frames, type: integer": "{name: Frames, type: number of frames",
	} {
		if _, err := newSchemas([]helm.Object{{Text: strings.Replace(string(good), from, to, 1)}}); err == nil {
			t.Errorf("%q instead of %q is taken", to, from)
		}
	}
}
