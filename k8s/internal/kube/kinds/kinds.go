// SPDX-License-Identifier: Apache-2.0

// Package kinds has the fields of Kubernetes' kinds that the node agent reads and writes, with the names and the JSON of k8s.io/api.
//
// In: JSON of the API server. Out: values. The packages of k8s.io/api register each kind of their group where they are linked at all, with
// a protobuf codec: 3 MB of the agent.
package kinds

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// MirrorPodAnnotationKey of a static pod's mirror is the UID that the container runtime knows.
const MirrorPodAnnotationKey = "kubernetes.io/config.mirror"

// Types of values, so that none is taken for another.
type (
	NodeAddressType string
	PolicyType      string
	Protocol        string
)

// Values.
const (
	NodeInternalIP    NodeAddressType = "InternalIP"
	NodeHostName      NodeAddressType = "Hostname"
	PolicyTypeIngress PolicyType      = "Ingress"
	PolicyTypeEgress  PolicyType      = "Egress"
	ProtocolUDP       Protocol        = "UDP"
	ProtocolTCP       Protocol        = "TCP"
	EventTypeWarning                  = "Warning"
)

// List is a list of one kind.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []T `json:"items"`
}

// Copies, as runtime.Object asks for them. Informers give out what they keep: hardly anything is copied.

func (in *List[T]) DeepCopyObject() runtime.Object             { return deepCopy(in) }
func (in *Node) DeepCopyObject() runtime.Object                { return deepCopy(in) }
func (in *Pod) DeepCopyObject() runtime.Object                 { return deepCopy(in) }
func (in *NetworkPolicy) DeepCopyObject() runtime.Object       { return deepCopy(in) }
func (in *Event) DeepCopyObject() runtime.Object               { return deepCopy(in) }
func (in *TokenReview) DeepCopyObject() runtime.Object         { return deepCopy(in) }
func (in *SubjectAccessReview) DeepCopyObject() runtime.Object { return deepCopy(in) }

func deepCopy[T any](in *T) *T {
	out := new(T)
	text, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		panic(err) // the fields of this package are read as they are written
	}
	return out
}

// Node is a machine of the cluster.
type Node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NodeSpec   `json:"spec,omitempty"`
	Status            NodeStatus `json:"status,omitempty"`
}

// NodeSpec has the ranges of the pods on the default network.
type NodeSpec struct {
	PodCIDR  string   `json:"podCIDR,omitempty"`
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// NodeStatus has the machine's addresses.
type NodeStatus struct {
	Addresses []NodeAddress `json:"addresses,omitempty"`
}

// NodeAddress is an address or a name.
type NodeAddress struct {
	Type    NodeAddressType `json:"type"`
	Address string          `json:"address"`
}

// Pod is a pod.
type Pod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PodSpec `json:"spec,omitempty"`
}

// PodSpec says where a pod runs.
type PodSpec struct {
	NodeName    string `json:"nodeName,omitempty"`
	HostNetwork bool   `json:"hostNetwork,omitempty"`
}

// NetworkPolicy says what pods may send and be sent.
type NetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NetworkPolicySpec `json:"spec,omitempty"`
}

// NetworkPolicySpec has no ingress rules: an ingress policy counts, whatever it allows.
type NetworkPolicySpec struct {
	PodSelector metav1.LabelSelector      `json:"podSelector"`
	Egress      []NetworkPolicyEgressRule `json:"egress,omitempty"`
	PolicyTypes []PolicyType              `json:"policyTypes,omitempty"`
}

// NetworkPolicyEgressRule allows these ports of these peers; all where there are none.
type NetworkPolicyEgressRule struct {
	Ports []NetworkPolicyPort `json:"ports,omitempty"`
	To    []NetworkPolicyPeer `json:"to,omitempty"`
}

// NetworkPolicyPort is a port, or all of a protocol.
type NetworkPolicyPort struct {
	Protocol *Protocol           `json:"protocol,omitempty"`
	Port     *intstr.IntOrString `json:"port,omitempty"`
}

// NetworkPolicyPeer is an address block, or pods by their labels.
type NetworkPolicyPeer struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	IPBlock           *IPBlock              `json:"ipBlock,omitempty"`
}

// IPBlock is a prefix less others.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except,omitempty"`
}

// Event tells the readers of an object what happened to it.
type Event struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	InvolvedObject    Reference   `json:"involvedObject"`
	Reason            string      `json:"reason,omitempty"`
	Message           string      `json:"message,omitempty"`
	Source            EventSource `json:"source,omitempty"`
	FirstTimestamp    metav1.Time `json:"firstTimestamp,omitempty"`
	LastTimestamp     metav1.Time `json:"lastTimestamp,omitempty"`
	Count             int32       `json:"count,omitempty"`
	Type              string      `json:"type,omitempty"`
}

// Reference names an object, or a part of it.
type Reference struct {
	Kind       string    `json:"kind,omitempty"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name,omitempty"`
	UID        types.UID `json:"uid,omitempty"`
	APIVersion string    `json:"apiVersion,omitempty"`
	FieldPath  string    `json:"fieldPath,omitempty"`
}

// EventSource is who tells.
type EventSource struct {
	Component string `json:"component,omitempty"`
	Host      string `json:"host,omitempty"`
}

// TokenReview asks whose a token is.
type TokenReview struct {
	metav1.TypeMeta `json:",inline"`
	Spec            TokenReviewSpec   `json:"spec"`
	Status          TokenReviewStatus `json:"status,omitempty"`
}

// TokenReviewSpec is the question.
type TokenReviewSpec struct {
	Token string `json:"token,omitempty"`
}

// TokenReviewStatus is the answer.
type TokenReviewStatus struct {
	Authenticated bool     `json:"authenticated,omitempty"`
	User          UserInfo `json:"user,omitempty"`
	Error         string   `json:"error,omitempty"`
}

// UserInfo is a user as the API server knows them.
type UserInfo struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// SubjectAccessReview asks whether a user may do something.
type SubjectAccessReview struct {
	metav1.TypeMeta `json:",inline"`
	Spec            SubjectAccessReviewSpec   `json:"spec"`
	Status          SubjectAccessReviewStatus `json:"status,omitempty"`
}

// SubjectAccessReviewSpec is the question. Its user's fields are flat here.
type SubjectAccessReviewSpec struct {
	NonResourceAttributes *NonResourceAttributes `json:"nonResourceAttributes,omitempty"`
	User                  string                 `json:"user,omitempty"`
	Groups                []string               `json:"groups,omitempty"`
	Extra                 map[string][]string    `json:"extra,omitempty"`
	UID                   string                 `json:"uid,omitempty"`
}

// NonResourceAttributes are a path and a verb.
type NonResourceAttributes struct {
	Path string `json:"path,omitempty"`
	Verb string `json:"verb,omitempty"`
}

// SubjectAccessReviewStatus is the answer.
type SubjectAccessReviewStatus struct {
	Allowed bool `json:"allowed"`
	Denied  bool `json:"denied,omitempty"`
}
