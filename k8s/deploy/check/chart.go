// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// namespace is where the plain manifests put everything.
const namespace = "kube-system"

// loaded is the chart, and its CRDs as text.
type loaded struct {
	chart *chart.Chart
	crds  []string
}

func loadChart(folder string) (*loaded, error) {
	read, err := loader.LoadDir(folder)
	if err != nil {
		return nil, err
	}
	l := &loaded{chart: read}
	for _, crd := range read.CRDObjects() {
		l.crds = append(l.crds, documents(string(crd.File.Data))...)
	}
	return l, nil
}

// render is what `helm template` prints, CRDs first: Helm's own engine and order.
func (l *loaded) render(values map[string]any) (string, error) {
	options := chartutil.ReleaseOptions{Name: "ktsn", Namespace: namespace, Revision: 1, IsInstall: true}
	ready, err := chartutil.ToRenderValues(l.chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Engine{Strict: true}.Render(l.chart, ready)
	if err != nil {
		return "", err
	}
	for name := range files {
		if base := path.Base(name); strings.HasPrefix(base, "_") || base == "NOTES.txt" {
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, chartutil.DefaultVersionSet, releaseutil.InstallOrder)
	if err != nil {
		return "", err
	}
	if len(hooks) > 0 {
		return "", fmt.Errorf("the chart has hooks: the plain manifests could not have them")
	}
	sort.SliceStable(manifests, func(a, b int) bool { return order(manifests[a]) < order(manifests[b]) })
	var text strings.Builder
	text.WriteString(l.crdText())
	for _, manifest := range manifests {
		text.WriteString("---\n" + strings.TrimSpace(withoutLicence(manifest.Content)) + "\n")
	}
	return text.String(), nil
}

// crdText is how each rendering begins.
func (l *loaded) crdText() string {
	var text strings.Builder
	for _, crd := range l.crds {
		text.WriteString("---\n" + strings.Trim(crd, "\n-") + "\n")
	}
	return text.String()
}

// order keeps Helm's order of kinds and makes that of names certain.
func order(manifest releaseutil.Manifest) string {
	kinds := releaseutil.InstallOrder
	for index, kind := range kinds {
		if manifest.Head.Kind == kind {
			return fmt.Sprintf("%03d %s", index, manifest.Name)
		}
	}
	return fmt.Sprintf("%03d %s", len(kinds), manifest.Name)
}

// withoutLicence leaves out the licence line: the plain manifests have one, at their beginning.
func withoutLicence(text string) string {
	var kept []string
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.Contains(line, "SPDX-License-Identifier") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
