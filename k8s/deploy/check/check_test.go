// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.ktsn.io}
spec:
  group: ktsn.io
  scope: Cluster
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [size], properties: {size: {type: integer}}}}}}
`

// A check that finds nothing in these would pass everything.
func TestFaultsAreFound(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: c, image: i, securityContext: {capabilities: {drop: [ALL]}}"
	set := "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n"
	held := set + "      securityContext: {seccompProfile: {type: RuntimeDefault}}\n      containers:\n      - name: c\n        image: i\n        securityContext: {capabilities: {drop: [ALL]}}\n"
	known, err := newSchemas([]helm.Object{{Text: crd}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		pod + "}": "",
		held:      "",
		strings.Replace(held, "RuntimeDefault", "Unconfined", 1):                                                "RuntimeDefault is expected",
		strings.Replace(held, "      securityContext: {seccompProfile: {type: RuntimeDefault}}\n", "", 1):       "RuntimeDefault is expected",
		held + "        env: [{name: GOMEMLIMIT, value: 256MiB}]\n        resources: {limits: {memory: 256Mi}}": "at most 90 %",
		held + "        env: [{name: GOMEMLIMIT, value: 224MiB}]\n        resources: {limits: {memory: 256Mi}}": "",
		held + "        env: [{name: GOMEMLIMIT, value: much}]":                                                 "GOMEMLIMIT",
		"apiVersion: ktsn.io/v1\nkind: Thing\nmetadata: {name: t}\nspec: {size: 3}":                             "",
		pod + ", imag: x}":                                                                                              `unknown field "spec.containers[0].imag"`,
		pod + ", ports: [{containerPort: x}]}":                                                                          "cannot unmarshal string",
		pod + ", volumeMounts: [{name: v, mountPath: /v}]}":                                                             "no such volume",
		strings.Replace(pod, "image: i, ", "", 1) + "}":                                                                 "one is missing",
		strings.Replace(pod, "capabilities: {drop: [ALL]}", "privileged: true", 1) + "}":                                "privileged",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nmetadata: {name: q}":                                           "already set",
		"apiVersion: v1\nkind: Pood\nmetadata: {name: p}":                                                               "no kind",
		"apiVersion: v1\nkind: ConfigMap":                                                                               "metadata.name",
		"apiVersion: ktsn.io/v1\nkind: Thing\nmetadata: {name: t}\nspec: {size: big}":                                   "spec.size",
		"apiVersion: ktsn.io/v1\nkind: Thing\nmetadata: {name: t}\nspec: {}":                                            "Required value",
		"apiVersion: ktsn.io/v1\nkind: Thing\nmetadata: {name: t}\nspec: {size: 3, sice: 4}":                            "no such field",
		"apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: net}\nspec: {config: '{'}": "not JSON",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules: [{apiGroups: [''], resources: ['*'], verbs: [get]}]": "least privilege",
	} {
		faults := strings.Join(known.check("here", text), "\n")
		if want == "" && faults != "" || !strings.Contains(faults, want) {
			t.Errorf("%s\nfound %q, want %q", text, faults, want)
		}
	}
}

func TestDocumentsAreSplit(t *testing.T) {
	if found := documents("# licence\n---\na: 1\n---\n# nothing\n---\nb: 2\n"); len(found) != 2 {
		t.Errorf("%q", found)
	}
}
