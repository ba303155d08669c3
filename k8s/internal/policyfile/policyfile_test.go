// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(namespace, name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func policy(namespace, name string, spec networking.NetworkPolicySpec) *networking.NetworkPolicy {
	return &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
}

func TestWhichPodsAreSelected(t *testing.T) {
	plc := metav1.LabelSelector{MatchLabels: map[string]string{"app": "plc"}}
	wrong := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	egress := []networking.PolicyType{networking.PolicyTypeEgress}
	static := pod("a", "static", "kn1", nil)
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	file := Make("kn1", []*networking.NetworkPolicy{
		policy("a", "z-all", networking.NetworkPolicySpec{PolicyTypes: egress, PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"closed": "yes"}}}),
		policy("a", "plc", networking.NetworkPolicySpec{PolicyTypes: egress, PodSelector: plc}),
		policy("b", "in", networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress}}),
		policy("c", "no types", networking.NetworkPolicySpec{PodSelector: plc, Egress: []networking.NetworkPolicyEgressRule{{}}}),
		policy("d", "no types, no rules", networking.NetworkPolicySpec{PodSelector: plc}),
		policy("e", "unreadable", networking.NetworkPolicySpec{PolicyTypes: egress, PodSelector: wrong}),
	}, []*corev1.Pod{
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
