// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"reflect"
	"strings"
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
	})
	want := File{
		Node: "kn1", Synced: true,
		Namespaces: map[string][]string{"a": {"plc", "z-all"}, "c": {"no types"}, "e": {"unreadable"}},
		Pods: map[string]Pod{
			"a/talker": {"uid-talker", []string{"plc", "z-all"}}, "a/other": {"uid-other", []string{}},
			"b/talker": {"uid-talker", []string{}}, "c/talker": {"uid-talker", []string{"no types"}},
			"d/talker": {"uid-talker", []string{}}, "e/talker": {"uid-talker", []string{"unreadable"}},
			"a/static": {"hash", []string{}},
		},
	}
	if !reflect.DeepEqual(file, want) {
		t.Errorf("%+v", file)
	}
}

func TestVerdict(t *testing.T) {
	file := File{
		Synced: true, Namespaces: map[string][]string{"a": {"plc"}},
		Pods: map[string]Pod{"a/closed": {"1", []string{"plc"}}, "a/free": {"2", []string{}}},
	}
	for _, c := range []struct {
		file                 File
		namespace, name, uid string
		want                 Verdict
		why                  string
	}{
		{file, "a", "closed", "1", Selected, "plc"},
		{file, "a", "free", "2", Free, ""},
		{file, "a", "free", "an older pod of that name", Unknown, "not seen the pod"},
		{file, "a", "closed", "another", Unknown, "plc"},
		{file, "a", "new", "3", Unknown, "not seen the pod"},
		{file, "b", "new", "3", Free, ""},
		{File{Pods: file.Pods}, "a", "free", "2", Unknown, "not seen the cluster's"},
		{File{}, "b", "new", "3", Unknown, "not seen the cluster's"},
	} {
		got, why := c.file.Verdict(c.namespace, c.name, c.uid)
		if got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s/%s %s: %v, %q", c.namespace, c.name, c.uid, got, why)
		}
	}
}
