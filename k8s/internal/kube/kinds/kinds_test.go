// SPDX-License-Identifier: Apache-2.0

package kinds_test

import (
	"reflect"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// Each field has the name, the JSON and the form of the field of k8s.io/api.
func TestFieldsAreThoseOfTheAPI(t *testing.T) {
	for _, pair := range [][2]any{
		{kinds.Node{}, corev1.Node{}}, {kinds.Pod{}, corev1.Pod{}}, {kinds.Event{}, corev1.Event{}},
		{kinds.List[kinds.Node]{}, corev1.NodeList{}}, {kinds.List[kinds.Pod]{}, corev1.PodList{}},
		{kinds.NetworkPolicy{}, networking.NetworkPolicy{}}, {kinds.List[kinds.NetworkPolicy]{}, networking.NetworkPolicyList{}},
		{kinds.TokenReview{}, authentication.TokenReview{}}, {kinds.SubjectAccessReview{}, authorization.SubjectAccessReview{}},
	} {
		same(t, reflect.TypeOf(pair[1]).String(), reflect.TypeOf(pair[0]), reflect.TypeOf(pair[1]))
	}
	for ours, theirs := range map[any]any{
		kinds.NodeInternalIP: corev1.NodeInternalIP, kinds.NodeHostName: corev1.NodeHostName, kinds.ProtocolUDP: corev1.ProtocolUDP,
		kinds.PolicyTypeIngress: networking.PolicyTypeIngress, kinds.PolicyTypeEgress: networking.PolicyTypeEgress,
		kinds.EventTypeWarning: corev1.EventTypeWarning, kinds.MirrorPodAnnotationKey: corev1.MirrorPodAnnotationKey,
	} {
		if reflect.ValueOf(ours).String() != reflect.ValueOf(theirs).String() {
			t.Errorf("%v, expected %v", ours, theirs)
		}
	}
}

func same(t *testing.T, path string, ours, theirs reflect.Type) {
	if ours == theirs {
		return
	}
	if ours.Kind() != theirs.Kind() {
		t.Errorf("%s: %s, expected %s", path, ours.Kind(), theirs.Kind())
		return
	}
	switch ours.Kind() {
	case reflect.Map, reflect.Pointer, reflect.Slice:
		same(t, path+"[]", ours.Elem(), theirs.Elem())
	case reflect.Struct:
		for index := range ours.NumField() {
			field := ours.Field(index)
			its, has := theirs.FieldByName(field.Name)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			expected, _, _ := strings.Cut(its.Tag.Get("json"), ",")
			if !has || name != expected {
				t.Errorf("%s.%s: JSON %q, expected %q", path, field.Name, name, expected)
				continue
			}
			same(t, path+"."+field.Name, field.Type, its.Type)
		}
	}
}

func TestACopySharesNothing(t *testing.T) {
	policy := &kinds.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}}}
	policy.Spec.Egress = []kinds.NetworkPolicyEgressRule{{To: []kinds.NetworkPolicyPeer{{IPBlock: &kinds.IPBlock{CIDR: "10.0.0.0/8"}}}}}
	was := policy.DeepCopyObject()
	if !reflect.DeepEqual(was, runtime.Object(policy)) {
		t.Errorf("%+v", was)
	}
	policy.Labels["x"], policy.Spec.Egress[0].To[0].IPBlock.CIDR = "z", ""
	if is := was.(*kinds.NetworkPolicy); is.Labels["x"] != "y" || is.Spec.Egress[0].To[0].IPBlock.CIDR != "10.0.0.0/8" {
		t.Errorf("%+v", is)
	}
}
