// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

// The chart's PrometheusRule has the rules of the file that Prometheus takes, templates of annotations untouched; its ConfigMap
// has the dashboard. Neither is there by default.
func TestTheChartCarriesRulesAndDashboard(t *testing.T) {
	_, objects, err := render(nil, []string{"monitoring.rules=true", "monitoring.dashboard=true", "monitoring.labels.release=prometheus"})
	if err != nil {
		t.Fatal(err)
	}
	_, defaults, err := render(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := helm.Text(defaults)
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
	for _, made := range objects {
		var object struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec any
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(made.Text), &object); err != nil {
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
