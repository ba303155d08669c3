// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

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
		// Of a pod that has no entry of its own nothing is known, whatever its namespace had when the file was written.
		`{"synced":true}`: {},
		`{"synced":true,"namespaces":{"b":["deny"]}}`:                                                                 {},
		`{"synced":true,"namespaces":{"a":["deny"]}}`:                                                                 {},
		`{"synced":true,"pods":{"a/q":{"uid":"u1"},"b/p":{"uid":"u1"}}}`:                                              {},
		`{"synced":true,"pods":{"a/p":{"uid":"u0"}}}`:                                                                 {},
		`{"synced":true,"pods":{"a/p":{"uid":"u1"}}}`:                                                                 {true, 0},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":[]}}}`:                       {true, 0},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny"]}}}`:                 {true, 1},
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u0","policies":[]}}}`:                       {}, // the one before it
		`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny","more"]},"b/p":{}}}`: {true, 2},
		`{"synced":true,"every":{"":["X y"],"a":["X z"],"b":["X"]}}`:                                                  {true, 2},
		`{"synced":true,"every":{"b":["X"]},"pods":{"a/p":{"uid":"u1"}}}`:                                             {true, 0},
		`{"synced":true,"unread":"x: forbidden","pods":{"a/p":{"uid":"u1"}}}`:                                         {},
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

// An ingress policy counts where the pod asks for the ingress fast path, and nowhere else.
func TestIngressPoliciesAreAboutTheIngressFastPath(t *testing.T) {
	w := &world{t: t, runDir: t.TempDir()}
	w.writePolicies(`{"synced":true,"ingress_namespaces":{"a":["in"]},"pods":{"a/p":{"uid":"u1","policies":[],"ingress":["in"]}}}`)
	pod := cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
	if known, names, _ := verdict(w.runDir+"/policies.json", pod, false); !known || len(names) > 0 {
		t.Errorf("ingress = kernel: %v, %v", known, names)
	}
	if known, names, _ := verdict(w.runDir+"/policies.json", pod, true); !known || len(names) != 1 || names[0] != "ingress NetworkPolicy in" {
		t.Errorf("ingress = short: %v, %v", known, names)
	}
}

func TestWhoIsAskedAboutPolicies(t *testing.T) {
	w := &world{t: t, runDir: t.TempDir()}
	inCluster := cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
	conf := func(pod cniconf.Pod, policies string, bypass bool) *cniconf.Conf {
		parsed, err := cniconf.Parse([]byte(`{"name":"tsn"}`), "")
		if err != nil {
			t.Fatal(err)
		}
		parsed.Pod, parsed.Policies = pod, policies
		parsed.Attachment.Set("allow_policy_bypass", bypass)
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
		{conf(cniconf.Pod{}, "agent", false), 0}, {conf(inCluster, "ignore", false), 0}, {conf(inCluster, "agent", true), 0},
		{conf(inCluster, "agent", false), types.ErrTryAgainLater},
	} {
		if got := code(refuseByPolicy(c.conf, w.runDir)); got != c.code {
			t.Errorf("%+v: code %d", c.conf, got)
		}
	}
	w.writePolicies(`{"synced":true,"namespaces":{"a":["deny"]},"pods":{"a/p":{"uid":"u1","policies":["deny"]}}}`)
	if got := code(refuseByPolicy(conf(inCluster, "agent", false), w.runDir)); got != codePolicy {
		t.Errorf("code %d", got)
	}
}

// A pod that the agent sees a moment after the kubelet is admitted; one that no agent sees is refused.
func TestAPodThatTheAgentSeesLater(t *testing.T) {
	w := &world{t: t, runDir: t.TempDir()}
	conf, err := cniconf.Parse([]byte(`{"name":"tsn"}`), "")
	if err != nil {
		t.Fatal(err)
	}
	conf.Pod = cniconf.Pod{Namespace: "a", Name: "p", UID: "u1"}
	left := `{"synced":true,"pods":{"a/p":{"uid":"u0","policies":[]}}}`
	w.writePolicies(left)
	seen := make(chan error, 1)
	time.AfterFunc(2*policyPause, func() {
		file := w.runDir + "/policies.json"
		seen <- errors.Join(os.WriteFile(file+".new", []byte(`{"synced":true,"pods":{"a/p":{"uid":"u1","policies":[]}}}`), 0o600), os.Rename(file+".new", file))
	})
	if err := errors.Join(refuseByPolicy(conf, w.runDir), <-seen); err != nil {
		t.Error(err)
	}
	w.writePolicies(left)
	if err := refuseByPolicy(conf, w.runDir); err == nil || coded(err).Code != types.ErrTryAgainLater || !strings.Contains(err.Error(), "has not seen the pod yet") {
		t.Errorf("of a dead agent's file: %v", err)
	}
}
