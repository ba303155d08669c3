// SPDX-License-Identifier: Apache-2.0

// Package policyfile tells tsn-cni which pods an egress NetworkPolicy selects: RUN_DIR/policies.json.
//
// In: the agent's informers of NetworkPolicies and of this node's pods. Out: a file that is always whole, and the
// verdict about one pod. Frames of KTSN pass the node's packet filter, so a pod that a policy keeps from sending must not be
// attached unknowingly. It must never say "free" about a pod that it does not know.
package policyfile

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Name is the file's name below RUN_DIR.
const Name = "policies.json"

// File is what stands in it.
type File struct {
	// Node is the Kubernetes Node's name.
	Node string `json:"node"`
	// Synced says that the agent has seen all policies and pods at least once.
	Synced bool `json:"synced"`
	// Namespaces that have egress policies, with their names.
	Namespaces map[string][]string `json:"namespaces"`
	// Pods of this node, by namespace/name.
	Pods map[string]Pod `json:"pods"`
}

// Pod is one pod of the node.
type Pod struct {
	UID string `json:"uid"`
	// Policies are the egress policies that select it, by name; empty: none.
	Policies []string `json:"policies"`
}

// Make decides about all pods of a node. `pods` of other nodes are left out.
func Make(node string, policies []*networking.NetworkPolicy, pods []*corev1.Pod) File {
	file := File{Node: node, Synced: true, Namespaces: map[string][]string{}, Pods: map[string]Pod{}}
	egress := map[string][]*networking.NetworkPolicy{}
	for _, policy := range policies {
		if isEgress(policy) {
			egress[policy.Namespace] = append(egress[policy.Namespace], policy)
			file.Namespaces[policy.Namespace] = append(file.Namespaces[policy.Namespace], policy.Name)
		}
	}
	for _, names := range file.Namespaces {
		sort.Strings(names)
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		found := Pod{UID: uidOf(pod), Policies: []string{}}
		for _, policy := range egress[pod.Namespace] {
			if selects(policy, pod) {
				found.Policies = append(found.Policies, policy.Name)
			}
		}
		sort.Strings(found.Policies)
		file.Pods[pod.Namespace+"/"+pod.Name] = found
	}
	return file
}

// uidOf is the UID that the container runtime is told: a static pod's is not its mirror's.
func uidOf(pod *corev1.Pod) string {
	if hash := pod.Annotations[corev1.MirrorPodAnnotationKey]; hash != "" {
		return hash
	}
	return string(pod.UID)
}

// isEgress: a policy without types is one about egress when it has egress rules, as the API says.
func isEgress(policy *networking.NetworkPolicy) bool {
	if len(policy.Spec.PolicyTypes) == 0 {
		return len(policy.Spec.Egress) > 0
	}
	return slices.Contains(policy.Spec.PolicyTypes, networking.PolicyTypeEgress)
}

// selects: a selector that cannot be read selects everything, as the safe side.
func selects(policy *networking.NetworkPolicy, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	return err != nil || selector.Matches(labels.Set(pod.Labels))
}

// Verdict about one pod.
type Verdict int

// Free: no egress policy selects the pod. Selected: one does. Unknown: the agent has not seen the pod yet, ask again.
const (
	Unknown Verdict = iota
	Free
	Selected
)

// Verdict says what is known of a pod, and why.
func (f File) Verdict(namespace, name, uid string) (Verdict, string) {
	pod, known := f.Pods[namespace+"/"+name]
	switch {
	case !f.Synced:
		return Unknown, "ktsn-node-agent has not seen the cluster's NetworkPolicies yet"
	case known && pod.UID == uid && len(pod.Policies) > 0:
		return Selected, fmt.Sprintf("egress NetworkPolicy %s selects the pod", strings.Join(pod.Policies, ", "))
	case known && pod.UID == uid, len(f.Namespaces[namespace]) == 0:
		return Free, ""
	}
	return Unknown, fmt.Sprintf("ktsn-node-agent has not seen the pod yet, and its namespace has egress NetworkPolicies (%s)",
		strings.Join(f.Namespaces[namespace], ", "))
}
