// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The chart's PrometheusRule has the rules of the file that Prometheus takes, templates of annotations untouched; its ConfigMap
// has the dashboard. Neither is there by default.
func TestTheChartCarriesRulesAndDashboard(t *testing.T) {
	chart, err := loadChart("../helm/ktsn")
	if err != nil {
		t.Fatal(err)
	}
	monitoring := map[string]any{"rules": true, "dashboard": true, "labels": map[string]any{"release": "prometheus"}}
	text, err := chart.render(map[string]any{"monitoring": monitoring})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := chart.render(nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain, "PrometheusRule") || strings.Contains(plain, "ktsn-dashboard") {
		t.Error("there by default")
	}
	alerts, err := os.ReadFile("../helm/ktsn/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := os.ReadFile("../helm/ktsn/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var wanted any
	if err := yaml.Unmarshal(alerts, &wanted); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, document := range documents(text) {
		var object struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec any
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch {
		case object.Kind == "PrometheusRule":
			if !reflect.DeepEqual(object.Spec, wanted) {
				t.Error("the rules differ from alerts.yaml")
			}
		case object.Metadata.Name == "ktsn-dashboard":
			if strings.TrimSpace(object.Data["ktsn.json"]) != strings.TrimSpace(string(dashboard)) {
				t.Error("the dashboard differs from dashboard.json")
			}
		default:
			continue
		}
		found++
		if object.Metadata.Labels["release"] != "prometheus" {
			t.Errorf("%s: labels %v", object.Kind, object.Metadata.Labels)
		}
	}
	if found != 2 {
		t.Errorf("%d of 2 objects", found)
	}
}
