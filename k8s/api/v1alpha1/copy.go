// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"
)

// DeepCopy of a status: nothing is shared with the original.
func (s *GateScheduleStatus) DeepCopy() *GateScheduleStatus {
	copied := *s
	copied.Candidate, copied.Accepted = s.Candidate.DeepCopy(), s.Accepted.DeepCopy()
	if s.Rejected != nil {
		rejected := *s.Rejected
		copied.Rejected = &rejected
	}
	copied.Nodes, copied.Conditions = slices.Clone(s.Nodes), slices.Clone(s.Conditions)
	return &copied
}

// DeepCopy of a rollout; nil stays nil.
func (r *Rollout) DeepCopy() *Rollout {
	if r == nil {
		return nil
	}
	copied := *r
	copied.Nodes, copied.Spec = slices.Clone(r.Nodes), *r.Spec.DeepCopy()
	return &copied
}

// DeepCopy of a spec.
func (s *GateScheduleSpec) DeepCopy() *GateScheduleSpec {
	copied := *s
	copied.NodeSelector, copied.PriorityMap = maps.Clone(s.NodeSelector), slices.Clone(s.PriorityMap)
	table := &copied.GateParameterTable
	if table.AdminGateStates != nil {
		states := *table.AdminGateStates
		table.AdminGateStates = &states
	}
	table.AdminControlList = slices.Clone(table.AdminControlList)
	table.QueueMaxSduTable = slices.Clone(table.QueueMaxSduTable)
	return &copied
}
