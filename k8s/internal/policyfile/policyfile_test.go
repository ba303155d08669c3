// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

func pod(namespace, name, node string, labels map[string]string) *kinds.Pod {
	return &kinds.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Spec:       kinds.PodSpec{NodeName: node},
	}
}

func policy(namespace, name string, spec kinds.NetworkPolicySpec) *kinds.NetworkPolicy {
	return &kinds.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
}

func TestWhichPodsAreSelected(t *testing.T) {
	plc := metav1.LabelSelector{MatchLabels: map[string]string{"app": "plc"}}
	wrong := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	egress := []kinds.PolicyType{kinds.PolicyTypeEgress}
	static := pod("a", "static", "kn1", nil)
	static.Annotations = map[string]string{kinds.MirrorPodAnnotationKey: "hash"}
	file := Make("kn1", []*kinds.NetworkPolicy{
		policy("a", "z-all", kinds.NetworkPolicySpec{PolicyTypes: egress, PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"closed": "yes"}}}),
		policy("a", "plc", kinds.NetworkPolicySpec{PolicyTypes: egress, PodSelector: plc}),
		policy("b", "in", kinds.NetworkPolicySpec{PolicyTypes: []kinds.PolicyType{kinds.PolicyTypeIngress}}),
		policy("c", "no types", kinds.NetworkPolicySpec{PodSelector: plc, Egress: []kinds.NetworkPolicyEgressRule{{}}}),
		policy("d", "no types, no rules", kinds.NetworkPolicySpec{PodSelector: plc}),
		policy("e", "unreadable", kinds.NetworkPolicySpec{PolicyTypes: egress, PodSelector: wrong}),
	}, []*kinds.Pod{
		pod("a", "talker", "kn1", map[string]string{"app": "plc", "closed": "yes"}), pod("a", "other", "kn1", nil),
		pod("a", "elsewhere", "kn2", nil), pod("b", "talker", "kn1", map[string]string{"app": "plc"}),
		pod("c", "talker", "kn1", map[string]string{"app": "plc"}), pod("d", "talker", "kn1", map[string]string{"app": "plc"}),
		pod("e", "talker", "kn1", nil), static,
	}, Others{Unread: "x", Every: map[string][]string{"": {"y"}}})
	want := File{
		Node: "kn1", Synced: true, Unread: "x", Every: map[string][]string{"": {"y"}},
		IngressNamespaces: map[string][]string{"b": {"in"}, "c": {"no types"}, "d": {"no types, no rules"}},
		Namespaces:        map[string][]string{"a": {"plc", "z-all"}, "c": {"no types"}, "e": {"unreadable"}},
		Pods: map[string]Pod{
			"a/talker": {"uid-talker", []string{"plc", "z-all"}, nil}, "a/other": {"uid-other", []string{}, nil},
			"b/talker": {"uid-talker", []string{}, []string{"in"}}, "c/talker": {"uid-talker", []string{"no types"}, []string{"no types"}},
			"d/talker": {"uid-talker", []string{}, []string{"no types, no rules"}}, "e/talker": {"uid-talker", []string{"unreadable"}, nil},
			"a/static": {"hash", []string{}, nil},
		},
	}
	if !reflect.DeepEqual(file, want) {
		t.Errorf("%+v", file)
	}
}
