// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func load(t *testing.T) *Chart {
	t.Helper()
	chart, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return chart
}

// `ktsn k8s` tells ktsnd's DaemonSet from the agent's by this label, and an update of one from an update of the other.
func TestEachPartHasADaemonSetWithItsLabel(t *testing.T) {
	objects, err := load(t).Render(nil, Release{Namespace: "plant", Service: "ktsn"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, object := range objects {
		metadata := object.Value["metadata"].(map[string]any)
		if labels, _ := metadata["labels"].(map[string]any); !object.IsDefinition() && labels["app.kubernetes.io/managed-by"] != "ktsn" {
			t.Errorf("%v %v: labels %v", object.Value["kind"], metadata["name"], labels)
		}
		if object.Value["kind"] != "DaemonSet" {
			continue
		}
		template := object.Value["spec"].(map[string]any)["template"].(map[string]any)
		container := template["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
		component := metadata["labels"].(map[string]any)["app.kubernetes.io/component"]
		if inner := template["metadata"].(map[string]any)["labels"].(map[string]any)["app.kubernetes.io/component"]; (inner == "daemon") != (component == "daemon") {
			t.Errorf("%v: its pods are %v, it is %v", metadata["name"], inner, component)
		}
		found[metadata["name"].(string)+" "+container["name"].(string)], _ = component.(string)
	}
	if len(found) != 2 || found["ktsnd ktsnd"] != "daemon" || found["ktsn-node agent"] == "daemon" {
		t.Errorf("%v", found)
	}
}

func TestValuesAreTaken(t *testing.T) {
	chart := load(t)
	before := chart.Defaults()["network"].(map[string]any)["uplink"]
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte("network: {uplink: eth0, mtu: 1400}\ntolerations: []\npriorityClassName:\nagent: {resources: {requests: {gpu: 1, cpu: 1}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	values, err := chart.Values([]string{file}, []string{
		"network.uplink=eth1", `nodeSelector.kubernetes\.io/arch=amd64`, "nodeSelector.tsn=yes", "resource.capacity=16", "ktsnd.wakeUps=true",
		"network.cidrs=10.0.0.0/8,fd00::/64", "ktsnd.config=", `agent.log={a,b}\`, "controller.log=1.5",
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]any{
		"network.uplink": "eth1", "network.mtu": 1400.0, "network.vxlan.device": "ktsn.1", "resource.capacity": "16", "ktsnd.wakeUps": true,
		"network.cidrs": "10.0.0.0/8,fd00::/64", "ktsnd.config": "", "priorityClassName": "", "agent.log": `{a,b}\`, "controller.log": "1.5", "tolerations": []any{},
		"nodeSelector": map[string]any{"kubernetes.io/arch": "amd64", "tsn": "yes"}, "agent.resources.requests.gpu": 1.0, "agent.resources.requests.cpu": 1.0,
	} {
		var found any = values
		for name := range strings.SplitSeq(path, ".") {
			found = found.(map[string]any)[name]
		}
		if !reflect.DeepEqual(found, want) {
			t.Errorf("%s: found %#v, want %#v", path, found, want)
		}
	}
	if after := chart.Defaults()["network"].(map[string]any)["uplink"]; after != before {
		t.Errorf("the default became %v", after)
	}
}

// Each fault names the place, the value, and what was expected.
func TestWrongValuesAreRefused(t *testing.T) {
	chart := load(t)
	for text, want := range map[string]string{
		"network.cidr=10.0.0.0/8":        "--set network.cidr: the chart has no such value; there are cidrs, mtu, uplink, vxlan",
		"netwrk.cidrs=10.0.0.0/8":        "--set netwrk: the chart has no such value; there are agent",
		"network=3":                      "--set network: found 3, expected values below it",
		"network.mtu=abc":                `--set network.mtu: found "abc", expected a number`,
		"network.mtu.x=1":                `--set network.mtu: found {"x":1}, expected a number`,
		"network.mtu=null":               "--set network.mtu: found null, expected a number",
		"ktsnd.wakeUps=yes":              `--set ktsnd.wakeUps: found "yes", expected true or false`,
		"tolerations=x":                  `--set tolerations: found "x", expected a list`,
		"agent.resources.limits=1":       "--set agent.resources.limits: found 1, expected values below it",
		"x":                              `--set "x": expected NAME=VALUE`,
		"=1":                             `--set "=1": expected NAME=VALUE`,
		"a..b=1":                         `--set "a..b=1": expected NAME=VALUE`,
		"tolerations[x].key=1":           `--set "tolerations[x].key=1": `,
		"FILE agent: {lok: debug}":       "agent.lok: the chart has no such value",
		"FILE agent: {log: a}\nagent: b": `key "agent" already set`,
		"FILE agent: [":                  "line 1: ",
		"FILE - agent":                   `found ["agent"], expected values by their names`,
		"FILE":                           "no such file or directory",
	} {
		var err error
		if content, is := strings.CutPrefix(text, "FILE"); is {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if content != "" && os.WriteFile(file, []byte(content[1:]), 0o600) != nil {
				t.Fatal(file)
			}
			want = "--values " + file + ": * " + want
			_, err = chart.Values([]string{file}, nil)
		} else {
			_, err = chart.Values(nil, []string{text})
		}
		begin, end, _ := strings.Cut(want, "* ")
		if err == nil || !strings.HasPrefix(err.Error(), begin) || !strings.Contains(err.Error(), end) {
			t.Errorf("%s: found %v, want %s", text, err, want)
		}
	}
}
