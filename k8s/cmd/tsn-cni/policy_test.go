// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

func TestPodsThatPoliciesSelect(t *testing.T) {
	pod := cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
	for content, want := range map[string]struct {
		known bool
		count int
	}{
		"": {}, "{": {}, "[]": {}, `{"synced":false}`: {},
		`{"synced":true}`: {true, 0},
		`{"synced":true,"namespaces":{"b":["deny"]}}`:                                                                 {true, 0},
		`{"synced":true,"namespaces":{"a":["deny"]}}`:                                                                 {},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":[]}}}`:                       {true, 0},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny"]}}}`:                 {true, 1},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u0","policies":[]}}}`:                       {}, // the one before it
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny","more"]},"b/p":{}}}`: {true, 2},
	} {
		w := &world{t: t, runDir: t.TempDir()}
		w.writePolicies(content)
		known, names, doubt := verdict(w.runDir+"/policies.json", pod)
		if known != want.known || len(names) != want.count || (!known && doubt == "") {
			t.Errorf("%s: %v, %v, %q", content, known, names, doubt)
		}
	}
	if known, _, doubt := verdict(t.TempDir()+"/policies.json", pod); known || doubt == "" {
		t.Errorf("no file: %v, %q", known, doubt)
	}
}

func TestWhoIsAskedAboutPolicies(t *testing.T) {
	w := &world{t: t, runDir: t.TempDir()}
	yes := true
	inCluster := cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
	conf := func(pod cniconf.Pod, policies string, bypass *bool) *cniconf.Conf {
		parsed, err := cniconf.Parse([]byte(`{"name":"tsn"}`), "")
		if err != nil {
			t.Fatal(err)
		}
		parsed.Pod, parsed.Policies, parsed.Attachment.AllowPolicyBypass = pod, policies, bypass
		return parsed
	}
	code := func(err error) uint {
		if err == nil {
			return 0
		}
		return coded(err).Code
	}
	// Nobody knows: no agent has written anything.
	for _, c := range []struct {
		conf *cniconf.Conf
		code uint
	}{
		{conf(cniconf.Pod{}, "agent", nil), 0}, {conf(inCluster, "ignore", nil), 0}, {conf(inCluster, "agent", &yes), 0},
		{conf(inCluster, "agent", nil), types.ErrTryAgainLater},
	} {
		if got := code(admit(c.conf, w.runDir)); got != c.code {
			t.Errorf("%+v: code %d", c.conf, got)
		}
	}
	w.writePolicies(`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny"]}}}`)
	if got := code(admit(conf(inCluster, "agent", nil), w.runDir)); got != codePolicy {
		t.Errorf("code %d", got)
	}
}
