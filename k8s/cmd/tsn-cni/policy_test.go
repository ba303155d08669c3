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
		`{"synced":true,"every":{"":["X y"],"a":["X z"],"b":["X"]}}`:                                                  {true, 2},
		`{"synced":true,"every":{"b":["X"]}}`:                                                                         {true, 0},
		`{"synced":true,"unread":"x: forbidden"}`:                                                                     {},
	} {
		w := &world{t: t, runDir: t.TempDir()}
		w.writePolicies(content)
		known, names, doubt := verdict(w.runDir+"/policies.json", pod, false)
		if known != want.known || len(names) != want.count || (!known && doubt == "") {
			t.Errorf("%s: %v, %v, %q", content, known, names, doubt)
		}
	}
	if known, _, doubt := verdict(t.TempDir()+"/policies.json", pod, true); known || doubt == "" {
		t.Errorf("no file: %v, %q", known, doubt)
	}
}

// An ingress policy counts where the pod asks for the short way in, and nowhere else.
func TestIngressPoliciesAreAboutTheShortWayIn(t *testing.T) {
	w := &world{t: t, runDir: t.TempDir()}
	for content, short := range map[string]bool{
		`{"synced":true,"ingress_namespaces":{"a":["in"]},"pods":{"a/p":{"uid":"u1","policies":[],"ingress":["in"]}}}`: true,
		`{"synced":true,"ingress_namespaces":{"a":["in"]}}`:                                                            false,
	} {
		w.writePolicies(content)
		pod := cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
		if known, names, _ := verdict(w.runDir+"/policies.json", pod, false); !known || len(names) > 0 {
			t.Errorf("%s: ingress = kernel: %v, %v", content, known, names)
		}
		known, names, _ := verdict(w.runDir+"/policies.json", pod, true)
		if known != short || (short && (len(names) != 1 || names[0] != "ingress NetworkPolicy in")) {
			t.Errorf("%s: ingress = short: %v, %v", content, known, names)
		}
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
