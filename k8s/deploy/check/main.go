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
	"slices"
	"sort"
	"strings"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

// namespace is where the plain manifests put everything.
const namespace = "kube-system"

const plainHeader = `# SPDX-License-Identifier: Apache-2.0
# What the chart in k8s/deploy/helm/ktsn renders with its defaults, for those without Helm. Written by
# scripts/manifests.sh; never edited. kubectl apply --server-side -f ktsn.yaml
`

const variantHeader = `# SPDX-License-Identifier: Apache-2.0
# What the chart renders of the values beside it. Written by scripts/manifests.sh; never edited.
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
	crds, own, err := render(nil, nil)
	if err != nil {
		return nil, err
	}
	known, err := newSchemas(crds)
	if err != nil {
		return nil, err
	}
	plain := filepath.Join(folder, "manifests/ktsn.yaml")
	faults, err := kept(plain, plainHeader+helm.Text(crds)+helm.Text(own), write)
	if err != nil {
		return nil, err
	}
	faults = append(faults, known.check("chart, defaults", helm.Text(crds)+helm.Text(own))...)
	variants, err := filepath.Glob(filepath.Join(folder, "check/variants/*"+valuesSuffix))
	if err != nil || len(variants) == 0 {
		return nil, fmt.Errorf("%s/check/variants: no variants: %w", folder, err)
	}
	for _, variant := range variants {
		_, own, err := render([]string{variant}, nil)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", variant, err))
			continue
		}
		faults = append(faults, known.check(variant, helm.Text(own))...)
		// The CRDs are the same in each.
		found, err := kept(strings.TrimSuffix(variant, valuesSuffix)+".yaml", variantHeader+helm.Text(own), write)
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

// render is what `helm template` makes of files with values and of assignments: the CRDs, and the other objects.
func render(files, assignments []string) (crds, own []helm.Object, err error) {
	chart, err := helm.Load()
	if err != nil {
		return nil, nil, err
	}
	values, err := chart.Values(files, assignments)
	if err != nil {
		return nil, nil, err
	}
	objects, err := chart.Render(values, helm.Release{Namespace: namespace, Service: "Helm"})
	first := slices.IndexFunc(objects, func(object helm.Object) bool { return !object.IsDefinition() })
	return objects[:max(first, 0)], objects[max(first, 0):], err
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
