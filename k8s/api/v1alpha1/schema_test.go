// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The schemas that the API server checks have exactly the fields of the types: a field that it does not know would be cut off in
// silence, one that the types do not know would be accepted and ignored.
func TestTheSchemasHaveTheTypesFields(t *testing.T) {
	holds(t, "gateschedules", reflect.TypeOf(GateScheduleSpec{}), reflect.TypeOf(GateScheduleStatus{}))
	holds(t, "streams", reflect.TypeOf(StreamSpec{}), reflect.TypeOf(StreamStatus{}))
}

func holds(t *testing.T, resource string, spec, status reflect.Type) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/helm/ktsn/crds/" + resource + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Group    string
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	version := crd.Spec.Versions[0]
	if crd.Spec.Group != Group || version.Name != Version {
		t.Errorf("%s/%s", crd.Spec.Group, version.Name)
	}
	properties := version.Schema.OpenAPIV3Schema["properties"].(map[string]any)
	compare(t, resource+".spec", properties["spec"].(map[string]any), spec)
	compare(t, resource+".status", properties["status"].(map[string]any), status)
}

func compare(t *testing.T, path string, schema map[string]any, kind reflect.Type) {
	t.Helper()
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		if kind.Kind() == reflect.Slice {
			if schema["type"] != "array" {
				t.Errorf("%s: %v, the type has a list", path, schema["type"])
				return
			}
			schema = schema["items"].(map[string]any)
		}
		kind = kind.Elem()
	}
	want := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer",
		reflect.Map: "object", reflect.Struct: "object"}[kind.Kind()]
	isTime := kind == reflect.TypeOf(metav1.MicroTime{}) || kind == reflect.TypeOf(metav1.Time{})
	if isTime {
		want = "string"
	}
	if schema["type"] != want {
		t.Errorf("%s: %v, the type has %s", path, schema["type"], want)
	}
	if kind.Kind() != reflect.Struct || isTime || schema["x-kubernetes-preserve-unknown-fields"] == true {
		return
	}
	properties, _ := schema["properties"].(map[string]any)
	var names []string
	for index := range kind.NumField() {
		name, options, _ := strings.Cut(kind.Field(index).Tag.Get("json"), ",")
		names = append(names, name)
		inner, has := properties[name].(map[string]any)
		if !has {
			t.Errorf("%s.%s is not in the schema", path, name)
			continue
		}
		required, _ := schema["required"].([]any)
		if !strings.Contains(options, "omitempty") && !slices.Contains(required, any(name)) {
			t.Errorf("%s.%s is always written but not required", path, name)
		}
		compare(t, path+"."+name, inner, kind.Field(index).Type)
	}
	for name := range properties {
		if !slices.Contains(names, name) {
			t.Errorf("%s.%s is not in the types", path, name)
		}
	}
}
