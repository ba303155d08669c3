// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/cel-go/cel"
	admission "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const agentUser = "system:serviceaccount:kube-system:ktsn-node-agent"

const controllerUser = "system:serviceaccount:kube-system:ktsn-controller"

// owned is a Node that has an owner and a finalizer.
const owned = `{"metadata":{"name":"kn1","ownerReferences":[{"apiVersion":"v1","kind":"Machine","name":"m","uid":"u1"}],"finalizers":["example.org/drain"]},"spec":{}}`

// policyOf is an admission policy as the chart renders it with assignments of values.
func policyOf(t *testing.T, name string, assignments ...string) *admission.ValidatingAdmissionPolicy {
	t.Helper()
	_, objects, err := render(nil, assignments)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.Value["kind"] == "ValidatingAdmissionPolicy" {
			policy := &admission.ValidatingAdmissionPolicy{}
			if err := yaml.Unmarshal([]byte(object.Text), policy); err != nil {
				t.Fatal(err)
			}
			if policy.Name == name {
				return policy
			}
		}
	}
	t.Fatalf("the chart has no policy %s", name)
	return nil
}

// admits evaluates a policy as the API server does: conditions, variables in order, validations.
func admits(t *testing.T, policy *admission.ValidatingAdmissionPolicy, input map[string]any) bool {
	t.Helper()
	base, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion(), true).Env(environment.NewExpressions)
	if err != nil {
		t.Fatal(err)
	}
	var options []cel.EnvOption
	for _, name := range []string{"request", "object", "oldObject", "variables"} {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	env, err := base.Extend(options...)
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{}
	evaluate := func(expression string) any {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatal(err)
		}
		with := maps.Clone(input)
		with["variables"] = variables
		value, _, err := program.Eval(with)
		if err != nil {
			return false // failurePolicy: Fail
		}
		return value.Value()
	}
	for _, condition := range policy.Spec.MatchConditions {
		if evaluate(condition.Expression) != true {
			return true
		}
	}
	for _, variable := range policy.Spec.Variables {
		variables[variable.Name] = evaluate(variable.Expression)
	}
	for _, validation := range policy.Spec.Validations {
		if evaluate(validation.Expression) != true {
			return false
		}
	}
	return true
}

// An agent, or who has its token, changes its three annotations of its own Node and nothing else.
func TestAnAgentIsConfinedToItsNode(t *testing.T) {
	policy := policyOf(t, "ktsn-node-agent")
	before := `{"metadata":{"name":"kn1","labels":{"a":"b"},"annotations":{"ktsn.io/vtep":"x","ktsn.io/tsn-prefixes":"10.99.1.0/24"}},"spec":{"podCIDR":"10.244.1.0/24"}}`
	bare := `{"metadata":{"name":"kn1"},"spec":{}}`
	for _, c := range []struct {
		name, user, node, old, change string
		want                          bool
	}{
		{"its report", agentUser, "kn1", before, `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, true},
		{"all three", agentUser, "kn1", before, `{"metadata":{"annotations":{"ktsn.io/stream-status":"a","ktsn.io/schedule-status":"b","ktsn.io/vtep":"c"}}}`, true},
		{"the first annotation of all", agentUser, "kn1", bare, `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, true},
		{"another's report", agentUser, "kn2", before, `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, false},
		{"a token of no node", agentUser, "", before, `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, false},
		{"its prefixes", agentUser, "kn1", before, `{"metadata":{"annotations":{"ktsn.io/tsn-prefixes":"10.99.2.0/24"}}}`, false},
		{"another annotation", agentUser, "kn1", before, `{"metadata":{"annotations":{"example.org/x":"y"}}}`, false},
		{"taking one away", agentUser, "kn1", before, `{"metadata":{"annotations":{"ktsn.io/tsn-prefixes":null}}}`, false},
		{"a label", agentUser, "kn1", before, `{"metadata":{"labels":{"a":"c"}}}`, false},
		{"a taint", agentUser, "kn1", before, `{"spec":{"unschedulable":true}}`, false},
		{"an owner that is not there", agentUser, "kn1", before, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"u9"}]}}`, false},
		{"its owner taken away", agentUser, "kn1", owned, `{"metadata":{"ownerReferences":null}}`, false},
		{"a finalizer", agentUser, "kn1", before, `{"metadata":{"finalizers":["example.org/x"]}}`, false},
		{"a finalizer taken away", agentUser, "kn1", owned, `{"metadata":{"finalizers":null}}`, false},
		{"the report of a node with both", agentUser, "kn1", owned, `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, true},
		{"somebody else", "system:node:kn2", "", before, `{"metadata":{"labels":{"a":"c"}}}`, true},
	} {
		var old, object, change map[string]any
		for text, into := range map[string]*map[string]any{c.old: &old, c.change: &change} {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				t.Fatal(err)
			}
		}
		if err := json.Unmarshal([]byte(c.old), &object); err != nil {
			t.Fatal(err)
		}
		merge(object, change)
		user := map[string]any{"username": c.user}
		if c.node != "" {
			user["extra"] = map[string]any{"authentication.kubernetes.io/node-name": []any{c.node}}
		}
		input := map[string]any{"request": map[string]any{"name": "kn1", "userInfo": user}, "object": object, "oldObject": old}
		if got := admits(t, policy, input); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// With the real-time check an agent also changes the annotations of that, and without it not.
func TestAnAgentAnswersRealTimeChecksWhereTheyAreOn(t *testing.T) {
	const before = `{"metadata":{"name":"kn1","annotations":{"ktsn.io/rt-check":"now","example.org/x":"y"}},"spec":{}}`
	for _, c := range []struct {
		name, node, change string
		off, on            bool
	}{
		{"the answer", "kn1", `{"metadata":{"annotations":{"ktsn.io/rt-verdict":"{}","ktsn.io/rt-check":null}}}`, false, true},
		{"another's answer", "kn2", `{"metadata":{"annotations":{"ktsn.io/rt-verdict":"{}"}}}`, false, false},
		{"an annotation of others", "kn1", `{"metadata":{"annotations":{"example.org/x":null}}}`, false, false},
		{"its report", "kn1", `{"metadata":{"annotations":{"ktsn.io/stream-status":"{}"}}}`, true, true},
	} {
		for assignment, want := range map[string]bool{"agent.rtCheck.enabled=false": c.off, "agent.rtCheck.enabled=true": c.on} {
			var old, object, change map[string]any
			for _, read := range []struct {
				text string
				into *map[string]any
			}{{before, &old}, {before, &object}, {c.change, &change}} {
				if err := json.Unmarshal([]byte(read.text), read.into); err != nil {
					t.Fatal(err)
				}
			}
			merge(object, change)
			user := map[string]any{"username": agentUser, "extra": map[string]any{"authentication.kubernetes.io/node-name": []any{c.node}}}
			input := map[string]any{"request": map[string]any{"name": "kn1", "userInfo": user}, "object": object, "oldObject": old}
			if got := admits(t, policyOf(t, "ktsn-node-agent", assignment), input); got != want {
				t.Errorf("%s, %s: %v", c.name, assignment, got)
			}
		}
	}
}

// The controller, or who has its token, changes the prefixes of Nodes and nothing else.
func TestTheControllerIsConfinedToPrefixes(t *testing.T) {
	policy := policyOf(t, "ktsn-controller")
	before := `{"metadata":{"name":"kn1","labels":{"a":"b"},"annotations":{"ktsn.io/vtep":"x"}},"spec":{"podCIDR":"10.244.1.0/24"}}`
	for _, c := range []struct {
		name, user, old, change string
		want                    bool
	}{
		{"prefixes", controllerUser, before, `{"metadata":{"annotations":{"ktsn.io/tsn-prefixes":"10.99.2.0/24"}}}`, true},
		{"the first annotation of all", controllerUser, `{"metadata":{"name":"kn1"},"spec":{}}`, `{"metadata":{"annotations":{"ktsn.io/tsn-prefixes":"x"}}}`, true},
		{"an agent's", controllerUser, before, `{"metadata":{"annotations":{"ktsn.io/vtep":"y"}}}`, false},
		{"taking one away", controllerUser, before, `{"metadata":{"annotations":{"ktsn.io/vtep":null}}}`, false},
		{"a label", controllerUser, before, `{"metadata":{"labels":{"a":"c"}}}`, false},
		{"a taint", controllerUser, before, `{"spec":{"unschedulable":true}}`, false},
		{"an owner that is not there", controllerUser, before, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"u9"}]}}`, false},
		{"its owner taken away", controllerUser, owned, `{"metadata":{"ownerReferences":null}}`, false},
		{"a finalizer", controllerUser, before, `{"metadata":{"finalizers":["example.org/x"]}}`, false},
		{"a finalizer taken away", controllerUser, owned, `{"metadata":{"finalizers":null}}`, false},
		{"prefixes of a node with both", controllerUser, owned, `{"metadata":{"annotations":{"ktsn.io/tsn-prefixes":"10.99.2.0/24"}}}`, true},
		{"somebody else", agentUser, before, `{"metadata":{"labels":{"a":"c"}}}`, true},
	} {
		var old, object, change map[string]any
		for _, read := range []struct {
			text string
			into *map[string]any
		}{{c.old, &old}, {c.old, &object}, {c.change, &change}} {
			if err := json.Unmarshal([]byte(read.text), read.into); err != nil {
				t.Fatal(err)
			}
		}
		merge(object, change)
		input := map[string]any{
			"request": map[string]any{"name": "kn1", "userInfo": map[string]any{"username": c.user}}, "object": object, "oldObject": old,
		}
		if got := admits(t, policy, input); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, patch map[string]any) {
	for key, value := range patch {
		inner, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isObject:
			if _, has := into[key].(map[string]any); !has {
				into[key] = map[string]any{}
			}
			merge(into[key].(map[string]any), inner)
		default:
			into[key] = value
		}
	}
}
