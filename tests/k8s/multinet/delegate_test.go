// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestAnnotationForms(t *testing.T) {
	for text, want := range map[string][]selection{
		"":            nil,
		"tsn":         {{Name: "tsn", Namespace: "own", Interface: "net1"}},
		"a/tsn@x0, b": {{Name: "tsn", Namespace: "a", Interface: "x0"}, {Name: "b", Namespace: "own", Interface: "net2"}},
		`[{"name":"tsn","ips":["10.9.0.7/24"]}]`: {{Name: "tsn", Namespace: "own", Interface: "net1", IPs: []string{"10.9.0.7/24"}}},
	} {
		if got, err := parseNetworks(text, "own"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, wrong := range []string{"[", "a,,b", "a/", `[{}]`} {
		if got, err := parseNetworks(wrong, "own"); err == nil {
			t.Errorf("%q was accepted: %+v", wrong, got)
		}
	}
}

func TestDelegateGetsWhatMultusAdds(t *testing.T) {
	one := selection{Name: "tsn", Namespace: "own", Interface: "net1", CNIArgs: map[string]any{"late": "send"}, MAC: "02:00:00:00:00:01"}
	d, err := newDelegate(one, `{"cniVersion":"1.0.0","type":"tsn-cni","classes":[6],"capabilities":{"mac":true}}`, "tsn-3")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(d.list.Plugins[0].Bytes, &got); err != nil {
		t.Fatal(err)
	}
	args := got["args"].(map[string]any)["cni"].(map[string]any)
	if got["deviceID"] != "tsn-3" || got["pciBusID"] != "tsn-3" || args["late"] != "send" || d.list.Name != "tsn" {
		t.Errorf("%+v", got)
	}
	if d.Capabilities["mac"] != one.MAC || d.Name != "own/tsn" {
		t.Errorf("%+v", d)
	}
	// What is saved for DEL, read again, knows names and types alone.
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var saved delegate
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	list, err := saved.stripped()
	if err != nil {
		t.Fatal(err)
	}
	var plain map[string]any
	if err := json.Unmarshal(list.Plugins[0].Bytes, &plain); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plain, map[string]any{"type": "tsn-cni"}) || list.CNIVersion != "1.0.0" {
		t.Errorf("%+v of %s", plain, list.CNIVersion)
	}
}

func TestWrongDefinitionIsNamed(t *testing.T) {
	for _, wrong := range []string{"", "{", `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0","plugins":[3]}`} {
		if _, err := newDelegate(selection{Name: "n", Namespace: "s"}, wrong, ""); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}

func TestDevicesAreKubelets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "checkpoint")
	text := `{"Data":{"PodDeviceEntries":[{"PodUID":"u","ResourceName":"ktsn.io/tsn","DeviceIDs":{"-1":["tsn-7"]}},
		{"PodUID":"v","ResourceName":"ktsn.io/tsn","DeviceIDs":{"-1":["tsn-8"]}}]}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := allocated(file, "u", "ktsn.io/tsn"); !reflect.DeepEqual(got, []string{"tsn-7"}) {
		t.Error(got)
	}
	if got := allocated(file+".not", "u", "ktsn.io/tsn"); len(got) != 0 {
		t.Error(got)
	}
}
