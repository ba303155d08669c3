// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"ktsn.io/ktsn/k8s/internal/rtcheck"
)

// The agent serves every metric of the table, with the table's kind and labels.
func TestTheAgentServesTheTable(t *testing.T) {
	if len(described) != len(names.rows) {
		t.Errorf("%d of %d metrics of names.txt are described", len(described), len(names.rows))
	}
	// A service that is named twice is shown once: a scrape with two would be refused whole.
	service := rtcheck.Service{Service: "Motion", Verdict: "TIGHT", Margin: 0.1}
	checked := &rtcheck.Result{MaxNs: 1, Services: []rtcheck.Service{service, service, {Service: "x", Verdict: "WELL"}}}
	registry := prometheus.NewPedanticRegistry()
	agent := func() Agent { return Agent{Faults: map[string]string{"overlay": "no prefix"}, RTCheck: checked} }
	registry.MustRegister(New(daemon{}, agent))
	registryOfStuck := prometheus.NewPedanticRegistry()
	registryOfStuck.MustRegister(New(daemon{stuck: true}, agent))
	served := map[string]bool{}
	for _, registry := range []*prometheus.Registry{registry, registryOfStuck} {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			name := strings.TrimPrefix(family.GetName(), prefix)
			row := names.rows[name]
			served[name] = true
			if kind := strings.ToLower(family.GetType().String()); kind != row.kind {
				t.Errorf("%s: %s, names.txt says %s", name, kind, row.kind)
			}
			for _, metric := range family.GetMetric() {
				var labels []string
				for _, pair := range metric.GetLabel() {
					labels = append(labels, pair.GetName())
				}
				wanted := slices.Sorted(slices.Values(row.labels))
				if !slices.Equal(labels, wanted) {
					t.Errorf("%s: labels %v, names.txt says %v", name, labels, wanted)
				}
			}
		}
	}
	for name := range names.rows {
		if !served[name] {
			t.Errorf("%s is never served", name)
		}
	}
}

func TestABadTableIsRefused(t *testing.T) {
	for _, text := range []string{"up | gauge | both | text", "bounds | x", "up | gauge |  | both | a\nup | gauge |  | both | b"} {
		if read, err := readTable(text); err == nil {
			t.Errorf("%q: %v", text, read)
		}
	}
}
