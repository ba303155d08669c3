// SPDX-License-Identifier: Apache-2.0

// Package policyfile computes which pods network policies select: for tsn-cni as RUN_DIR/policies.json, for ktsnd as restrictions.
//
// In: the agent's informers of NetworkPolicies and of this node's pods, the names of policies of other kinds. Out: the contents
// of the file, and what the policies leave of one pod's uplink egress and ingress fast path. Frames of KTSN bypass the node's packet
// filter, so a pod that a policy restricts must not be attached unknowingly, and one that is attached already must not go on as
// before. Where a policy cannot be expressed, the restriction must always leave less than the policy does, never more.
package policyfile

import (
	"slices"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// Name is the file's name below RUN_DIR.
const Name = "policies.json"

// File is what stands in it.
type File struct {
	// Node is the Kubernetes Node's name.
	Node string `json:"node"`
	// Synced says that the agent has seen all policies and pods at least once.
	Synced bool `json:"synced"`
	// Unread says why policies of a kind other than NetworkPolicy are not known; empty: they are.
	Unread string `json:"unread,omitempty"`
	// Every names the policies of kinds that KTSN cannot read, by namespace; "": of the whole cluster. Each counts
	// as one that selects every pod there, for both directions.
	Every map[string][]string `json:"every,omitempty"`
	// Namespaces that have egress policies, with their names; IngressNamespaces the same of ingress policies. For people: ADD goes by Pods.
	Namespaces        map[string][]string `json:"namespaces"`
	IngressNamespaces map[string][]string `json:"ingress_namespaces,omitempty"`
	// Pods of this node, by namespace/name.
	Pods map[string]Pod `json:"pods"`
}

// Pod is one pod of the node.
type Pod struct {
	UID string `json:"uid"`
	// Policies are the egress policies that select it, by name, Ingress the ingress policies; empty: none.
	Policies []string `json:"policies"`
	Ingress  []string `json:"ingress,omitempty"`
}

// Others are the policies of other kinds than NetworkPolicy.
type Others struct {
	// Unread says why some are not known.
	Unread string
	// Every is as in a File.
	Every map[string][]string
}

// about are those about pods of a namespace.
func (o Others) about(namespace string) []string {
	return slices.Concat(o.Every[""], o.Every[namespace])
}

// Make decides about all pods of a node. `pods` of other nodes are left out.
func Make(node string, policies []*kinds.NetworkPolicy, pods []*kinds.Pod, others Others) File {
	file := File{
		Node: node, Synced: true, Unread: others.Unread, Every: others.Every,
		Namespaces: map[string][]string{}, IngressNamespaces: map[string][]string{}, Pods: map[string]Pod{},
	}
	byNamespace := map[string][]*kinds.NetworkPolicy{}
	for _, policy := range policies {
		byNamespace[policy.Namespace] = append(byNamespace[policy.Namespace], policy)
		if isEgress(policy) {
			file.Namespaces[policy.Namespace] = append(file.Namespaces[policy.Namespace], policy.Name)
		}
		if isIngress(policy) {
			file.IngressNamespaces[policy.Namespace] = append(file.IngressNamespaces[policy.Namespace], policy.Name)
		}
	}
	for _, names := range []map[string][]string{file.Namespaces, file.IngressNamespaces} {
		for _, names := range names {
			sort.Strings(names)
		}
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		selecting := selecting(byNamespace[pod.Namespace], pod)
		file.Pods[pod.Namespace+"/"+pod.Name] = Pod{
			UID: UIDOf(pod), Policies: append([]string{}, names(selecting, isEgress)...), Ingress: names(selecting, isIngress),
		}
	}
	return file
}

// Trimmed is a policy with nothing but what Make and Restrict read. It selects and leaves the same, and trimmed again it is the same.
func Trimmed(policy *kinds.NetworkPolicy) kinds.NetworkPolicy {
	kept := kinds.NetworkPolicy{TypeMeta: policy.TypeMeta}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = policy.Namespace, policy.Name, policy.UID, policy.ResourceVersion
	kept.Spec.PodSelector = policy.Spec.PodSelector
	kept.Spec.PolicyTypes = []kinds.PolicyType{}
	if isIngress(policy) {
		kept.Spec.PolicyTypes = append(kept.Spec.PolicyTypes, kinds.PolicyTypeIngress)
	}
	if !isEgress(policy) {
		return kept
	}
	kept.Spec.PolicyTypes = append(kept.Spec.PolicyTypes, kinds.PolicyTypeEgress)
	for _, rule := range policy.Spec.Egress {
		if !forAllUDP(rule.Ports) {
			continue
		}
		blocks := slices.DeleteFunc(slices.Clone(rule.To), func(peer kinds.NetworkPolicyPeer) bool { return !isBlock(peer) })
		// A rule without peers allows everything; one of which no peer is left allows nothing that can be expressed.
		if len(rule.To) == 0 || len(blocks) > 0 {
			kept.Spec.Egress = append(kept.Spec.Egress, kinds.NetworkPolicyEgressRule{To: blocks})
		}
	}
	return kept
}

// selecting are the policies of a pod's namespace that select it.
func selecting(policies []*kinds.NetworkPolicy, pod *kinds.Pod) []*kinds.NetworkPolicy {
	var found []*kinds.NetworkPolicy
	for _, policy := range policies {
		if policy.Namespace == pod.Namespace && selects(policy, pod) {
			found = append(found, policy)
		}
	}
	return found
}

// names of the policies of a kind, sorted.
func names(policies []*kinds.NetworkPolicy, is func(*kinds.NetworkPolicy) bool) []string {
	var found []string
	for _, policy := range policies {
		if is(policy) {
			found = append(found, policy.Name)
		}
	}
	sort.Strings(found)
	return found
}

// UIDOf is the UID that the container runtime knows; for a static pod it differs from the mirror pod's UID.
func UIDOf(pod *kinds.Pod) string {
	if hash := pod.Annotations[kinds.MirrorPodAnnotationKey]; hash != "" {
		return hash
	}
	return string(pod.UID)
}

// isEgress: a policy without types is one about egress when it has egress rules, as the API says.
func isEgress(policy *kinds.NetworkPolicy) bool {
	if len(policy.Spec.PolicyTypes) == 0 {
		return len(policy.Spec.Egress) > 0
	}
	return slices.Contains(policy.Spec.PolicyTypes, kinds.PolicyTypeEgress)
}

// isIngress: a policy without types is always one about ingress.
func isIngress(policy *kinds.NetworkPolicy) bool {
	return len(policy.Spec.PolicyTypes) == 0 || slices.Contains(policy.Spec.PolicyTypes, kinds.PolicyTypeIngress)
}

// selects: a selector that cannot be read selects everything, as the safe side.
func selects(policy *kinds.NetworkPolicy, pod *kinds.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	return err != nil || selector.Matches(labels.Set(pod.Labels))
}
