// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// A policies.json of any contents: where it does not tell, there is a reason; where it tells, there is none.
func FuzzVerdict(f *testing.F) {
	for _, seed := range []string{
		`{"node":"n","synced":true,"namespaces":{"a":["p"]},"ingress_namespaces":{"a":["q"]},"pods":{"a/b":{"uid":"c","policies":["p"],"ingress":["q"]}}}`,
		`{"synced":true,"every":{"":["all"]}}`, `{"synced":true,"unread":"why"}`, `{"synced":false}`, `[]`,
	} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, content []byte, isShort bool) {
		path := filepath.Join(t.TempDir(), "policies.json")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		known, names, doubt := verdict(path, cniconf.Pod{Namespace: "a", Name: "b", UID: "c"}, isShort)
		if known == (doubt != "") || (!known && len(names) > 0) {
			t.Fatalf("%v, %q, %q", known, names, doubt)
		}
	})
}

// What GC takes back and what IPAM is given, from any standard input.
func FuzzStdin(f *testing.F) {
	f.Add([]byte(`{"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}`))
	f.Add([]byte(`{"cni.dev/valid-attachments":[]}`))
	f.Add([]byte(`{"name":"tsn","type":"tsn-cni","ipam":{"type":"host-local","ranges":[]}}`))
	f.Fuzz(func(t *testing.T, stdin []byte) {
		if valid, err := validOf(stdin); (valid == nil) == (err == nil) {
			t.Fatalf("%v, %v", valid, err)
		}
		conf, err := cniconf.Parse(stdin, "")
		if err != nil || !needsNode(conf) {
			return
		}
		given, err := withRanges(stdin, conf.IPAM, leaseName, []string{"10.99.1.0/24"})
		if err != nil {
			t.Fatal(err)
		}
		again, err := cniconf.Parse(given, "")
		if err != nil || needsNode(again) {
			t.Fatalf("%s: %v", given, err)
		}
	})
}
