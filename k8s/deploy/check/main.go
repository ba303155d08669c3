// SPDX-License-Identifier: Apache-2.0

// Command check holds the deployment files against the API that they are written for, without a cluster.
//
// In: the Helm chart, the plain manifests, the samples. Out: one line for each fault and exit status 1: a chart that does
// not render (with its defaults, and with other values), plain manifests that are not what the chart renders, a field or a
// type that the Kubernetes API does not have, a field that must be there and is not, a resource of ours that its own CRD
// refuses. With -write it writes the plain manifests again. It must never ask a cluster or a network.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

const plainHeader = `# SPDX-License-Identifier: Apache-2.0
# What the chart in k8s/deploy/helm/ktsn renders with its defaults, for those without Helm. Written by
# scripts/manifests.sh; never edited. kubectl apply --server-side -f ktsn.yaml
`

// variants are values beside the defaults: each names a branch of the templates.
var variants = []map[string]any{
	{"network": map[string]any{"cidrs": "10.99.0.0/16,fd99::/48", "uplink": "eth1"}},
	{"ktsnd": map[string]any{"config": "[[port]]\ndevice = \"eth0\"\ncpu = 1\n"}, "nodeSelector": map[string]any{"tsn": "yes"}, "tolerations": []any{}},
}

func main() {
	write := flag.Bool("write", false, "write the plain manifests again")
	folder := flag.String("deploy", "..", "the folder k8s/deploy")
	flag.Parse()
	faults, err := run(*folder, *write)
	if err != nil {
		fmt.Fprintf(os.Stderr, "check: %v\n", err)
		os.Exit(1)
	}
	for _, fault := range faults {
		fmt.Println(fault)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

func run(folder string, write bool) ([]string, error) {
	chart, err := loadChart(filepath.Join(folder, "helm/ktsn"))
	if err != nil {
		return nil, err
	}
	rendered, err := chart.render(nil)
	if err != nil {
		return nil, err
	}
	plain := filepath.Join(folder, "manifests/ktsn.yaml")
	wanted := []byte(plainHeader + rendered)
	if write {
		return nil, os.WriteFile(plain, wanted, 0o644)
	}
	var faults []string
	if found, err := os.ReadFile(plain); err != nil || !bytes.Equal(found, wanted) {
		faults = append(faults, plain+": is not what the chart renders; scripts/manifests.sh write")
	}
	known, err := newSchemas(chart.crds)
	if err != nil {
		return nil, err
	}
	faults = append(faults, known.check("chart, defaults", rendered)...)
	for index, values := range variants {
		text, err := chart.render(values)
		if err != nil {
			faults = append(faults, fmt.Sprintf("chart, variant %d: %v", index+1, err))
			continue
		}
		faults = append(faults, known.check(fmt.Sprintf("chart, variant %d", index+1), text)...)
	}
	samples, err := filepath.Glob(filepath.Join(folder, "samples/*.yaml"))
	if err != nil {
		return nil, err
	}
	sort.Strings(samples)
	if len(samples) == 0 {
		return nil, fmt.Errorf("%s/samples: no samples", folder)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			return nil, err
		}
		faults = append(faults, known.check(sample, string(text))...)
	}
	return faults, nil
}

// documents splits YAML into its documents, those without content left out.
func documents(text string) []string {
	var found []string
	for part := range strings.SplitSeq("\n"+text, "\n---") {
		for line := range strings.SplitSeq(part, "\n") {
			if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "#") {
				found = append(found, part)
				break
			}
		}
	}
	return found
}
