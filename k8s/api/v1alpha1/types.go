// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds KTSN's custom resources, group ktsn.io.
//
// In and out: objects of the API server. The leaves of a gate schedule have the names of ieee802-dot1q-sched, as in the files
// of `ktsn schedule`; instants are nanoseconds of TAI, spans nanoseconds, rates bit/s. The schemas that the API
// server checks are in deploy/helm/ktsn/crds; a test holds them against these types.
package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and version.
const (
	Group   = "ktsn.io"
	Version = "v1alpha1"
)

// GateSchedules is the resource of GateSchedule, as a client names it.
var GateSchedules = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "gateschedules"}

// Phases of a GateSchedule.
const (
	// PhasePending: no node has been asked yet.
	PhasePending = "Pending"
	// PhaseChecking: the nodes' ktsnd are asked whether they would take it. Nothing changes.
	PhaseChecking = "Checking"
	// PhaseCommitted: all would; each is to have it at ConfigChangeTime.
	PhaseCommitted = "Committed"
	// PhaseApplied: all have it.
	PhaseApplied = "Applied"
	// PhaseRejected: none has it; what was accepted before holds.
	PhaseRejected = "Rejected"
)

// Phases in their order.
var Phases = []string{PhasePending, PhaseChecking, PhaseCommitted, PhaseApplied, PhaseRejected}

// GateSchedule is one gate schedule for the uplinks of some nodes: all of them get it, at one instant, or none does.
type GateSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              GateScheduleSpec   `json:"spec"`
	Status            GateScheduleStatus `json:"status,omitempty"`
}

// GateScheduleSpec is the schedule that the user asks for.
type GateScheduleSpec struct {
	// NodeSelector are labels of the nodes; none: all nodes.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Uplink is the port's device on those nodes; empty: the agent's uplink.
	Uplink string `json:"uplink,omitempty"`
	// LinkSpeed that it was made for; a slower port refuses it. 0: any.
	LinkSpeed int64 `json:"link-speed,omitempty"`
	// PriorityMap: 16 traffic classes, for priorities 0 to 15; none: the port's.
	PriorityMap []int32 `json:"priority-map,omitempty"`
	// GateParameterTable: 802.1Q-2022 12.29.1.
	GateParameterTable GateParameterTable `json:"gate-parameter-table"`
}

// GateParameterTable has the administrative leaves.
type GateParameterTable struct {
	GateEnabled             bool               `json:"gate-enabled"`
	AdminGateStates         *int32             `json:"admin-gate-states,omitempty"`
	AdminBaseTime           int64              `json:"admin-base-time,omitempty"`
	AdminCycleTime          int64              `json:"admin-cycle-time,omitempty"`
	AdminCycleTimeExtension int64              `json:"admin-cycle-time-extension,omitempty"`
	AdminControlList        []GateControlEntry `json:"admin-control-list,omitempty"`
	QueueMaxSduTable        []QueueMaxSdu      `json:"queue-max-sdu-table,omitempty"`
}

// Cycle is the cycle time, or the sum of the intervals.
func (t *GateParameterTable) Cycle() int64 {
	cycle := t.AdminCycleTime
	if cycle == 0 {
		for _, entry := range t.AdminControlList {
			cycle += entry.TimeIntervalValue
		}
	}
	return cycle
}

// GateControlEntry is one entry of the list.
type GateControlEntry struct {
	OperationName     string `json:"operation-name,omitempty"`
	GateStatesValue   int32  `json:"gate-states-value"`
	TimeIntervalValue int64  `json:"time-interval-value"`
}

// QueueMaxSdu limits the frames of a class, in octets; 0: no limit.
type QueueMaxSdu struct {
	TrafficClass int32 `json:"traffic-class"`
	QueueMaxSdu  int64 `json:"queue-max-sdu"`
}

// GateScheduleStatus is how far it is. ktsn-controller alone writes it; the agents read it and answer in annotations of
// their Nodes.
type GateScheduleStatus struct {
	Phase string `json:"phase,omitempty"`
	// Message says it in words.
	Message string `json:"message,omitempty"`
	// Candidate is the generation that is being checked or committed.
	Candidate *Rollout `json:"candidate,omitempty"`
	// Accepted is the generation that holds.
	Accepted *Rollout `json:"accepted,omitempty"`
	// Rejected is the last one that was not taken.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Attempts counts all rollouts that were begun.
	Attempts int64 `json:"attempts,omitempty"`
	// Nodes is what each node says of itself.
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Conditions: Accepted, InSync.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Rollout is one generation on its way to nodes, or there.
type Rollout struct {
	Generation int64 `json:"generation"`
	// Attempt distinguishes rollouts of one generation.
	Attempt int64 `json:"attempt"`
	// Nodes that have to have it.
	Nodes []string `json:"nodes,omitempty"`
	// ConfigChangeTime, TAI; 0: not chosen yet.
	ConfigChangeTime int64 `json:"configChangeTime,omitempty"`
	// Since: the phase's begin; Until: when it must be over.
	Since metav1.MicroTime `json:"since"`
	Until metav1.MicroTime `json:"until"`
	// Spec as it was when the rollout began: a later edit is another generation.
	Spec GateScheduleSpec `json:"spec"`
}

// Rejection says why a generation was not taken, and when it is tried again.
type Rejection struct {
	Generation int64            `json:"generation"`
	Attempt    int64            `json:"attempt"`
	Reason     string           `json:"reason"`
	Message    string           `json:"message"`
	RetryAt    metav1.MicroTime `json:"retryAt"`
}

// NodeStatus is one node's answer.
type NodeStatus struct {
	Name             string `json:"name"`
	State            string `json:"state"`
	Generation       int64  `json:"generation,omitempty"`
	ConfigChangeTime int64  `json:"configChangeTime,omitempty"`
	Message          string `json:"message,omitempty"`
}

// FromUnstructured reads an object of a dynamic client.
func FromUnstructured(object any) (*GateSchedule, error) {
	schedule := &GateSchedule{}
	return schedule, read(object, schedule, "GateSchedule")
}

// ToUnstructured makes an object for a dynamic client.
func (s *GateSchedule) ToUnstructured() (*unstructured.Unstructured, error) {
	return write(s, "GateSchedule", s.Name)
}

func read(object, into any, kind string) error {
	from, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("an object of an unexpected kind: %T", object)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into); err != nil {
		return fmt.Errorf("%s %s: %w", kind, from.GetName(), err)
	}
	return nil
}

func write(from any, kind, name string) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: Group, Version: Version, Kind: kind})
	return object, nil
}
