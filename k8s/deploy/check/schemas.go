// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"ktsn.io/ktsn/k8s/deploy/helm"
)

// operatorRules are a kind of the Prometheus operator; promtool tests the rules (tests/tests/metrics.rs).
var operatorRules = schema.GroupKind{Group: "monitoring.coreos.com", Kind: "PrometheusRule"}

// foreign are resources of other projects: their schemas are theirs, their form is looked at.
var foreign = map[schema.GroupKind]bool{{Group: "k8s.cni.cncf.io", Kind: "NetworkAttachmentDefinition"}: true}

// own is the schema of one version of a resource of ours.
type own struct {
	validator  validation.SchemaValidator
	structural *structuralschema.Structural
	rules      *cel.Validator
}

// schemas are the types of the Kubernetes API, and those of our CRDs.
type schemas struct {
	decoder runtime.Decoder
	own     map[schema.GroupVersionKind]own
}

func newSchemas(crds []helm.Object) (*schemas, error) {
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		return nil, err
	}
	if err := apiextensionsv1.AddToScheme(known); err != nil {
		return nil, err
	}
	options := kjson.SerializerOptions{Strict: true}
	s := &schemas{decoder: kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, known, known, options), own: map[schema.GroupVersionKind]own{}}
	for _, crd := range crds {
		if err := s.addCRD(crd.Text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *schemas) addCRD(text string) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(text), &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		if version.Schema == nil {
			return fmt.Errorf("%s %s: no schema", crd.Name, version.Name)
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return err
		}
		structural, err := structuralschema.NewStructural(&internal)
		if err != nil {
			return fmt.Errorf("%s %s: %w", crd.Name, version.Name, err)
		}
		validator, _, err := validation.NewSchemaValidator(&internal)
		if err != nil {
			return fmt.Errorf("%s %s: %w", crd.Name, version.Name, err)
		}
		kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
		rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
		s.own[kind] = own{validator: validator, structural: structural, rules: rules}
	}
	return acceptable(&crd)
}

// acceptable: the API server's own judgement of the definition, the cost of its rules too.
func acceptable(crd *apiextensionsv1.CustomResourceDefinition) error {
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil); err != nil {
		return err
	}
	if faults := crdvalidation.ValidateCustomResourceDefinition(context.Background(), &internal); len(faults) > 0 {
		return fmt.Errorf("%s: %w", crd.Name, faults.ToAggregate())
	}
	return nil
}

// check says what is wrong with the objects of a text.
func (s *schemas) check(where, text string) []string {
	var faults []string
	for index, document := range documents(text) {
		raw, err := yaml.YAMLToJSONStrict([]byte(document))
		if err == nil {
			err = s.object(raw)
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: object %d: %v", where, index+1, err))
		}
	}
	return faults
}

func (s *schemas) object(raw []byte) error {
	var object unstructured.Unstructured
	if err := utiljson.Unmarshal(raw, &object.Object); err != nil { // integers as the API server has them
		return err
	}
	kind := object.GroupVersionKind()
	what := fmt.Sprintf("%s %s", kind.Kind, object.GetName())
	if object.GetName() == "" {
		return fmt.Errorf("%s: metadata.name: missing", what)
	}
	if ours, is := s.own[kind]; is {
		if errors := validation.ValidateCustomResource(nil, object.Object, ours.validator); len(errors) > 0 {
			return fmt.Errorf("%s: %w", what, errors.ToAggregate())
		}
		if errors, _ := ours.rules.Validate(context.Background(), nil, ours.structural, object.Object, nil, celconfig.RuntimeCELCostBudget); len(errors) > 0 {
			return fmt.Errorf("%s: %w", what, errors.ToAggregate())
		}
		options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
		if unknown := pruning.PruneWithOptions(object.Object, ours.structural, true, options); len(unknown) > 0 {
			return fmt.Errorf("%s: no such field: %v", what, unknown)
		}
		return nil
	}
	if foreign[kind.GroupKind()] {
		config, _, _ := unstructured.NestedString(object.Object, "spec", "config")
		if !json.Valid([]byte(config)) {
			return fmt.Errorf("%s: spec.config is not JSON", what)
		}
		return nil
	}
	if kind.GroupKind() == operatorRules {
		if groups, _, _ := unstructured.NestedSlice(object.Object, "spec", "groups"); len(groups) == 0 {
			return fmt.Errorf("%s: spec.groups: missing", what)
		}
		return nil
	}
	typed, _, err := s.decoder.Decode(raw, nil, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := required(typed); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
