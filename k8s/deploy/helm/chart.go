// SPDX-License-Identifier: Apache-2.0

// Package helm is the Helm chart of KTSN, rendered by Helm's own engine.
//
// In: values. Out: the objects of the cluster, in the order in which they are made. It must never ask a cluster or a network.
package helm

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// folder is the chart's. `all`: the name of _helpers.tpl begins with an underscore.
//
//go:embed all:ktsn
var folder embed.FS

// Chart is the chart, with its defaults.
type Chart struct{ loaded *chart.Chart }

// Release says where the objects are installed, and by which program (label app.kubernetes.io/managed-by).
type Release struct{ Namespace, Service string }

// Object is one object of the cluster: its text as the template has it, and what the text says.
type Object struct {
	Text  string         `json:"text"`
	Value map[string]any `json:"value"`
}

// IsDefinition says whether it is a CRD, which the chart has apart from its templates.
func (o Object) IsDefinition() bool { return o.Value["kind"] == "CustomResourceDefinition" }

// Load reads the chart.
func Load() (*Chart, error) {
	var read []*loader.BufferedFile
	err := fs.WalkDir(folder, "ktsn", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := folder.ReadFile(name)
		read = append(read, &loader.BufferedFile{Name: strings.TrimPrefix(name, "ktsn/"), Data: data})
		return err
	})
	if err != nil {
		return nil, err
	}
	loaded, err := loader.LoadFiles(read)
	return &Chart{loaded}, err
}

// Version is the version of KTSN that the chart installs.
func (c *Chart) Version() string { return c.loaded.AppVersion() }

// Defaults are the chart's own values.
func (c *Chart) Defaults() map[string]any { return c.loaded.Values }

// Render makes the objects: CRDs first, then in Helm's order of kinds; of one kind in the order of the templates' names.
func (c *Chart) Render(values map[string]any, release Release) ([]Object, error) {
	options := chartutil.ReleaseOptions{Name: c.loaded.Name(), Namespace: release.Namespace, Revision: 1, IsInstall: true}
	ready, err := chartutil.ToRenderValues(c.loaded, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	ready["Release"].(map[string]any)["Service"] = release.Service
	rendered, err := engine.Engine{Strict: true}.Render(c.loaded, ready)
	if err != nil {
		return nil, err
	}
	for name := range rendered {
		if base := path.Base(name); strings.HasPrefix(base, "_") || base == "NOTES.txt" {
			delete(rendered, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(rendered, chartutil.DefaultVersionSet, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	if len(hooks) > 0 {
		return nil, fmt.Errorf("the chart has hooks: `kubectl apply` does not know them")
	}
	slices.SortStableFunc(manifests, func(a, b releaseutil.Manifest) int { return strings.Compare(order(a), order(b)) })
	var texts []string
	for _, definition := range c.loaded.CRDObjects() {
		texts = append(texts, strings.Trim(string(definition.File.Data), "\n-"))
	}
	for _, manifest := range manifests {
		texts = append(texts, strings.TrimSpace(withoutLicence(manifest.Content)))
	}
	objects := make([]Object, len(texts))
	for index, text := range texts {
		objects[index].Text = text
		if err := yaml.Unmarshal([]byte(text), &objects[index].Value); err != nil {
			return nil, fmt.Errorf("object %d: %w:\n%s", index+1, err, text)
		}
	}
	return objects, nil
}

// order keeps Helm's order of kinds and makes that of names certain.
func order(manifest releaseutil.Manifest) string {
	place := slices.Index(releaseutil.InstallOrder, manifest.Head.Kind)
	if place < 0 {
		place = len(releaseutil.InstallOrder)
	}
	return fmt.Sprintf("%03d %s", place, manifest.Name)
}

// withoutLicence leaves out the licence line: what is made of the templates has one, at its beginning.
func withoutLicence(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "SPDX-License-Identifier") }), "\n")
}

// Text is what `kubectl apply -f -` takes.
func Text(objects []Object) string {
	var text strings.Builder
	for _, object := range objects {
		text.WriteString("---\n" + object.Text + "\n")
	}
	return text.String()
}
