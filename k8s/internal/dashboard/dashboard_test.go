// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/internal/metrics"
)

const file = "../../deploy/helm/ktsn/monitoring/dashboard.json"

var update = flag.Bool("update", false, "write the dashboard again")

// The file that is shipped is what the description says: go test ./internal/dashboard -update writes it.
func TestTheFileIsCurrent(t *testing.T) {
	made, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, made) {
		t.Errorf("%s is not what the description says: go test ./internal/dashboard -update", file)
	}
}

// Every metric of every query and alert is one of the table, and its labels are that metric's.
func TestQueriesNameMetricsOfTheTable(t *testing.T) {
	name := regexp.MustCompile(`\bktsn_[a-z_]+`)
	group := regexp.MustCompile(`by \(([a-z, ]+)\)`)
	known := metrics.Names()
	check := func(place, expression string) {
		var labels []string
		found := name.FindAllString(expression, -1)
		if len(found) == 0 {
			t.Errorf("%s: no metric", place)
		}
		for _, metric := range found {
			of, isKnown := known[strings.TrimSuffix(metric, "_bucket")]
			if !isKnown {
				t.Errorf("%s: %s is not in names.txt", place, metric)
			}
			if strings.HasSuffix(metric, "_bucket") {
				labels = append(labels, "le")
			}
			labels = append(labels, of...)
		}
		labels = append(labels, "instance")
		for _, by := range group.FindAllStringSubmatch(expression, -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: no label %s", place, label)
				}
			}
		}
	}
	for _, row := range Rows() {
		for _, panel := range row.Panels {
			for _, query := range panel.Queries {
				check(row.Title+", "+panel.Title, query.Expression)
			}
		}
	}
	alerts, err := os.ReadFile("../../deploy/helm/ktsn/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?ms)alert: (\w+)\n(?:\s+#[^\n]*\n)?\s+expr: (.*?)\n\s+(?:for|labels):`).FindAllStringSubmatch(string(alerts), -1)
	if len(rules) != strings.Count(string(alerts), "alert: ") {
		t.Errorf("%d alerts were read", len(rules))
	}
	for _, rule := range rules {
		check(rule[1], rule[2])
	}
}

func TestEveryPanelHasANameOfItsOwn(t *testing.T) {
	titles := map[string]bool{}
	for _, row := range Rows() {
		for _, panel := range row.Panels {
			if titles[panel.Title] || panel.Title == "" || len(panel.Queries) == 0 {
				t.Errorf("%q: twice, without a name, or without a query", panel.Title)
			}
			titles[panel.Title] = true
		}
	}
}
