// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

// How much of each namespace an agent keeps, so that a user who may write there fills no agent's memory.
var (
	policiesBound = kube.Bound{Objects: 1000, Octets: 4 << 20}
	othersBound   = kube.Bound{Objects: 100, Octets: 1 << 20} // each counts as one about every pod: the first says it all
	podsBound     = kube.Bound{Objects: 1000, Octets: 4 << 20}
	streamsBound  = kube.Bound{Objects: 10_000, Octets: 8 << 20}
)

// sayOver logs a namespace of which not all objects of a kind are kept.
func (a *Agent) sayOver(kind string) func(namespace, reason string) {
	return func(namespace, reason string) {
		a.config.Log.Warn("a namespace has more than is kept of it; what is left out counts as unknown", "kind", kind, "namespace", namespace, "reason", reason)
	}
}

// othersNow are the policies that KTSN does not read: those of other kinds, and those of a namespace that has too many.
func (a *Agent) othersNow() policyfile.Others {
	others := a.others.now()
	for namespace, reason := range a.policyShares.Over() {
		if others.Every == nil {
			others.Every = map[string][]string{}
		}
		others.Every[namespace] = append(others.Every[namespace], fmt.Sprintf("NetworkPolicies of the namespace (%s, which KTSN does not read)", reason))
		slices.Sort(others.Every[namespace])
	}
	return others
}

func trimPolicy(object runtime.Object) {
	if found, is := object.(*kinds.NetworkPolicy); is {
		*found = policyfile.Trimmed(found)
	}
}

// trimPod keeps what makes a pod this node's, a talker, or one that a policy selects.
func trimPod(object runtime.Object) {
	found, is := object.(*kinds.Pod)
	if !is {
		return
	}
	mirror, isMirror := found.Annotations[kinds.MirrorPodAnnotationKey]
	found.ManagedFields, found.Annotations = nil, nil
	if isMirror {
		found.Annotations = map[string]string{kinds.MirrorPodAnnotationKey: mirror}
	}
}

// trimToName keeps an object's name, and which one it is.
func trimToName(object runtime.Object) {
	found, is := object.(*unstructured.Unstructured)
	if !is {
		return
	}
	bare := &unstructured.Unstructured{}
	bare.SetGroupVersionKind(found.GroupVersionKind())
	bare.SetNamespace(found.GetNamespace())
	bare.SetName(found.GetName())
	bare.SetUID(found.GetUID())
	bare.SetResourceVersion(found.GetResourceVersion())
	found.Object = bare.Object
}

// trimToTalker keeps of a Stream which pods are its talkers. A Stream without a specification stays one that cannot be read.
func trimToTalker(object runtime.Object) {
	found, is := object.(*unstructured.Unstructured)
	if !is {
		return
	}
	kept := any("missing")
	if spec, isObject := found.Object["spec"].(map[string]any); isObject {
		kept = map[string]any{"talker": spec["talker"]}
	}
	trimToName(found)
	found.Object["spec"] = kept
}
