// SPDX-License-Identifier: Apache-2.0

// Command check holds the deployment files against the API that they are written for, without a cluster.
//
// In: the Helm chart, the plain manifests, the samples. Out: one line for each fault and exit status 1: a chart that does
// not render (with its defaults, and with the values in variants/), plain manifests that are not what the chart renders, a field or a
// type that the Kubernetes API does not have, a field that must be there and is not, a resource of ours that its own CRD
// refuses. With -write it writes the plain manifests again. It must never ask a cluster or a network.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
)

const plainHeader = `# SPDX-License-Identifier: Apache-2.0
# What the chart in k8s/deploy/helm/ktsn renders with its defaults, for those without Helm. Written by
# scripts/manifests.sh; never edited. kubectl apply --server-side -f ktsn.yaml
`

const variantHeader = `# SPDX-License-Identifier: Apache-2.0
# What Helm renders of the values beside it; ktsn k8s must render the same. Written by scripts/manifests.sh; never edited.
`

// valuesSuffix ends the names of values beside the defaults: each names a branch of the templates.
const valuesSuffix = ".values.yaml"

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
	known, err := newSchemas(chart.crds)
	if err != nil {
		return nil, err
	}
	plain := filepath.Join(folder, "manifests/ktsn.yaml")
	faults, err := kept(plain, plainHeader+rendered, write)
	if err != nil {
		return nil, err
	}
	faults = append(faults, known.check("chart, defaults", rendered)...)
	variants, err := filepath.Glob(filepath.Join(folder, "check/variants/*"+valuesSuffix))
	if err != nil || len(variants) == 0 {
		return nil, fmt.Errorf("%s/check/variants: no variants: %w", folder, err)
	}
	for _, variant := range variants {
		values, err := chartutil.ReadValuesFile(variant)
		if err != nil {
			return nil, err
		}
		text, err := chart.render(values)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", variant, err))
			continue
		}
		faults = append(faults, known.check(variant, text)...)
		// The CRDs are the same in each.
		own := text[len(chart.crdText()):]
		found, err := kept(strings.TrimSuffix(variant, valuesSuffix)+".yaml", variantHeader+own, write)
		if err != nil {
			return nil, err
		}
		faults = append(faults, found...)
	}
	if write {
		return nil, nil
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

// kept holds a file against what it must be, or writes it.
func kept(path, wanted string, write bool) ([]string, error) {
	if write {
		return nil, os.WriteFile(path, []byte(wanted), 0o644)
	}
	if found, err := os.ReadFile(path); err != nil || string(found) != wanted {
		return []string{path + ": is not what the chart renders; scripts/manifests.sh write"}, nil
	}
	return nil, nil
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
