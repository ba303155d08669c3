// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Streams is the resource of Stream, as a client names it.
var Streams = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "streams"}

// Values of talker-status [802.1Q-2022 46.2.5.1.1].
const (
	TalkerNone   = "none"
	TalkerReady  = "ready"
	TalkerFailed = "failed"
)

// States of a Stream on one node.
const (
	// StreamWaiting: what it is judged by is not known yet.
	StreamWaiting = "Waiting"
	// StreamAccepted: the node's port has room for it.
	StreamAccepted = "Accepted"
	// StreamRefused: it has not, or the frames would not leave by it.
	StreamRefused = "Refused"
)

// Stream is what some pods of its namespace send to one destination. Leaves have the names of ieee802-dot1q-tsn-types; its
// identity is the object's own, there is no stream-id.
type Stream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              StreamSpec   `json:"spec"`
	Status            StreamStatus `json:"status,omitempty"`
}

// StreamSpec is what the talkers are to send, and what they need.
type StreamSpec struct {
	Talker     Talker      `json:"talker"`
	StreamRank *StreamRank `json:"stream-rank,omitempty"`
	// Priority of the talkers' socket (SO_PRIORITY), 0 to 15; the port's priority map makes a traffic class of it.
	Priority                  int32                      `json:"priority"`
	DataFrameSpecification    DataFrameSpecification     `json:"data-frame-specification"`
	TrafficSpecification      TrafficSpecification       `json:"traffic-specification"`
	UserToNetworkRequirements *UserToNetworkRequirements `json:"user-to-network-requirements,omitempty"`
}

// Talker says which pods send it; each of them sends all of it.
type Talker struct {
	// PodSelector are labels of pods of the Stream's namespace.
	PodSelector map[string]string `json:"podSelector"`
	// InterfaceName in the pods; empty: the only one that tsn-cni attached.
	InterfaceName string `json:"interface-name,omitempty"`
}

// StreamRank: 802.1Q-2022 46.2.3.2.
type StreamRank struct {
	// Rank 0 (emergency) goes before 1.
	Rank int32 `json:"rank"`
}

// DataFrameSpecification: the leaves of ipv4-tuple and ipv6-tuple that KTSN looks at; UDP.
type DataFrameSpecification struct {
	DestinationIPAddress string `json:"destination-ip-address"`
	DestinationPort      int32  `json:"destination-port"`
}

// TrafficSpecification: 802.1Q-2022 46.2.3.5.
type TrafficSpecification struct {
	Interval             Interval `json:"interval"`
	MaxFramesPerInterval int32    `json:"max-frames-per-interval"`
	// MaxFrameSize in octets, without MAC header, tag, FCS, preamble and gap: the IP packet.
	MaxFrameSize int32 `json:"max-frame-size"`
	// TimeAware talkers send at an offset within intervals that begin at multiples of TAI; others at any time.
	TimeAware *TimeAware `json:"time-aware,omitempty"`
}

// Interval in seconds, as a fraction.
type Interval struct {
	Numerator   int64 `json:"numerator"`
	Denominator int64 `json:"denominator"`
}

// Nanoseconds of the interval; 0: not a whole number of them.
func (i Interval) Nanoseconds() int64 {
	const second = 1_000_000_000
	if i.Denominator <= 0 || i.Numerator <= 0 || i.Numerator > 1<<32 || i.Numerator*second%i.Denominator != 0 {
		return 0
	}
	return i.Numerator * second / i.Denominator
}

// TimeAware: offsets of the first frame in the interval, in ns.
type TimeAware struct {
	EarliestTransmitOffset int64 `json:"earliest-transmit-offset"`
	LatestTransmitOffset   int64 `json:"latest-transmit-offset"`
}

// UserToNetworkRequirements: 802.1Q-2022 46.2.3.6.
type UserToNetworkRequirements struct {
	// MaxLatency in ns. Only the part up to the wire of the talker's node is judged.
	MaxLatency int64 `json:"max-latency"`
}

// StreamStatus is written by ktsn-controller alone.
type StreamStatus struct {
	ObservedGeneration int64      `json:"observedGeneration,omitempty"`
	StatusInfo         StatusInfo `json:"status-info"`
	// AccumulatedLatency in ns, worst case, from the talker to the wire of its node; with time-aware from the interval's begin. Of the
	// node where it is longest; 0: not known.
	AccumulatedLatency int64  `json:"accumulated-latency,omitempty"`
	Message            string `json:"message,omitempty"`
	// NodesAccepted and NodesApplied of the nodes with talkers, as in 2/2.
	NodesAccepted string `json:"nodesAccepted,omitempty"`
	NodesApplied  string `json:"nodesApplied,omitempty"`
	// Frames and Late are the sums of the nodes' counters.
	Frames int64 `json:"frames,omitempty"`
	Late   int64 `json:"late,omitempty"`
	// Nodes with talkers, at most 100. NodesLeftOut is how many more there are: those where it is applied are left out first.
	Nodes        []StreamNode       `json:"nodes,omitempty"`
	NodesLeftOut int32              `json:"nodesLeftOut,omitempty"`
	Conditions   []metav1.Condition `json:"conditions,omitempty"`
}

// StatusInfo: 802.1Q-2022 46.2.5.1. There is no listener-status: listeners are not known.
type StatusInfo struct {
	TalkerStatus string `json:"talker-status"`
	// FailureCode of table 46-15; 0 with talker-status failed: that table has none for it, `message` says it in words.
	FailureCode int32 `json:"failure-code"`
}

// StreamNode is one node with talkers.
type StreamNode struct {
	Name string `json:"name"`
	// Pods that are talkers, at most 16 names; PodCount is all of them.
	Pods     []string `json:"pods,omitempty"`
	PodCount int32    `json:"podCount"`
	// Port that the frames leave by; empty: they stay on the node, or it is not known.
	Port         string `json:"port,omitempty"`
	TrafficClass int32  `json:"traffic-class"`
	State        string `json:"state"`
	Reason       string `json:"reason"`
	Message      string `json:"message"`
	FailureCode  int32  `json:"failure-code,omitempty"`
	// AccumulatedLatency in ns on this node.
	AccumulatedLatency int64 `json:"accumulated-latency,omitempty"`
	// GateSchedule that it was judged by, and its generation; none: the link's speed alone.
	GateSchedule           string `json:"gateSchedule,omitempty"`
	GateScheduleGeneration int64  `json:"gateScheduleGeneration,omitempty"`
	// ConfigChangeTime of that generation on this node, TAI.
	ConfigChangeTime int64 `json:"configChangeTime,omitempty"`
	// Applied: it is accepted, ktsnd has all talkers' interfaces, and the port has the schedule.
	Applied bool `json:"applied"`
	// AppliedSince, or since when it is not.
	AppliedSince metav1.Time     `json:"appliedSince"`
	Counters     *StreamCounters `json:"counters,omitempty"`
}

// StreamCounters are those of the talkers' attachments, added up: ktsnd counts by attachment, so what else these pods send by the
// same interface is in them. They start at 0 with each attachment.
type StreamCounters struct {
	Frames  int64 `json:"frames"`
	Octets  int64 `json:"octets"`
	Late    int64 `json:"late"`
	Overrun int64 `json:"overrun"`
	Waited  int64 `json:"waited,omitempty"`
	// Lost by ktsnd's reasons for a drop, Refused (left to the kernel) by those for a bypass.
	Lost    map[string]int64 `json:"lost,omitempty"`
	Refused map[string]int64 `json:"refused,omitempty"`
	// ErrorP50 and ErrorP99 of the transmit error in ns (hand-over less transmit time), of the worst talker.
	ErrorP50 int64 `json:"errorP50"`
	ErrorP99 int64 `json:"errorP99"`
}

// Rank of the stream: 1 unless it says otherwise.
func (s *StreamSpec) Rank() int32 {
	if s.StreamRank == nil {
		return 1
	}
	return s.StreamRank.Rank
}

// Selects says whether a pod of the stream's namespace with these labels is a talker.
func (t Talker) Selects(labels map[string]string) bool {
	for name, value := range t.PodSelector {
		if found, has := labels[name]; !has || found != value {
			return false
		}
	}
	return len(t.PodSelector) > 0
}

// CompareStreams orders streams as they are accepted: rank, then age, then name.
func CompareStreams(a, b *Stream) int {
	return cmp.Or(int(a.Spec.Rank())-int(b.Spec.Rank()), ByAge(a, b))
}

// ByAge orders objects: the older one first, then by name.
func ByAge[T metav1.Object](a, b T) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
		strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName()))
}

// DeepCopy of a status: nothing is shared with the original.
func (s *StreamStatus) DeepCopy() *StreamStatus {
	copied := *s
	copied.Nodes, copied.Conditions = slices.Clone(s.Nodes), slices.Clone(s.Conditions)
	for index := range copied.Nodes {
		node := &copied.Nodes[index]
		node.Pods = slices.Clone(node.Pods)
		if node.Counters != nil {
			counters := *node.Counters
			counters.Lost, counters.Refused = maps.Clone(counters.Lost), maps.Clone(counters.Refused)
			node.Counters = &counters
		}
	}
	return &copied
}

// Typed makes a Stream of an object of a dynamic client, for an informer's store: a store of ten thousand is read every second. An object that
// cannot be read stays as it is: StreamFrom says why.
func Typed(object any) (any, error) {
	one, err := StreamFrom(object)
	if err != nil {
		return object, nil
	}
	one.ManagedFields = nil
	return one, nil
}

// StreamFrom reads an object of a dynamic client, or what Typed made of it, which is shared and must not be changed.
func StreamFrom(object any) (*Stream, error) {
	if typed, is := object.(*Stream); is {
		return typed, nil
	}
	stream := &Stream{}
	return stream, read(object, stream, "Stream")
}

// ToUnstructured makes an object for a dynamic client.
func (s *Stream) ToUnstructured() (*unstructured.Unstructured, error) {
	return write(s, "Stream", fmt.Sprintf("%s/%s", s.Namespace, s.Name))
}
