// SPDX-License-Identifier: Apache-2.0

// Package rollout decides how a gate schedule gets to all nodes or to none. It is pure: an object, the nodes and the time
// come in, the object's next status goes out. So a controller that dies anywhere, or two of them, go on from what is written.
//
//	Pending ─► Checking ─► Committed ─► Applied        each arrow is one write of the status
//	   ▲           └───────────┴──► Rejected ──┐       (one object: the write is the decision)
//	   └───────────────────────────────────────┘ later, or when the spec changes
//
// Checking: every node's ktsnd is asked, nothing changes. Committed: all said yes; the status has one ConfigChangeTime for
// all, and each agent applies. A node that has not confirmed well before that instant makes it Rejected, and every agent goes back to
// what was accepted before. Nodes that join later get what is accepted: schedules are aligned to TAI, so they need no common
// instant with the others.
package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// Config of rollouts.
type Config struct {
	// CheckMax is how long nodes have to answer a check.
	CheckMax time.Duration
	// Margin from the decision to ConfigChangeTime.
	Margin time.Duration
	// TakeBack of it is kept for taking the decision back before that instant.
	TakeBack time.Duration
	// RetryAfter a rejection for a cause that may pass by itself.
	RetryAfter time.Duration
	// ClockMax is by how much the nodes' TAI may differ from each other.
	ClockMax time.Duration
}

// Defaults of the flags.
var Defaults = Config{
	CheckMax: 30 * time.Second, Margin: 3 * time.Second, TakeBack: time.Second, RetryAfter: 30 * time.Second,
	ClockMax: 500 * time.Millisecond,
}

// Node as the rollout sees it.
type Node struct {
	Name    string
	Labels  map[string]string
	Answers Answers
}

// Reasons of rejections.
const (
	ReasonRefused  = "NodeRefused"
	ReasonSilent   = "NodeUnreachable"
	ReasonMissed   = "NodeTooLate"
	ReasonConflict = "Conflict"
	ReasonClock    = "ClocksDiffer"
	ReasonChanged  = "NodesChanged"
	ReasonNoNode   = "NoNodeSelected"
)

// Next is the status that follows. `others` are all GateSchedules, for conflicts.
func (c Config) Next(schedule *v1alpha1.GateSchedule, others []*v1alpha1.GateSchedule, nodes []Node, now time.Time) v1alpha1.GateScheduleStatus {
	status := *schedule.Status.DeepCopy()
	selected := Select(schedule.Spec, nodes)
	switch {
	case status.Candidate == nil:
		c.idle(&status, schedule, others, nodes, selected, now)
	case status.Candidate.ConfigChangeTime == 0:
		c.checking(&status, schedule, nodes, selected, now)
	default:
		c.committed(&status, schedule, nodes, now)
	}
	status.Nodes = summary(schedule, status, nodes)
	conditions(&status, schedule.Generation, now)
	return status
}

// Select names the nodes that a schedule is for.
func Select(spec v1alpha1.GateScheduleSpec, nodes []Node) []string {
	var names []string
	for _, node := range nodes {
		matches := true
		for label, value := range spec.NodeSelector {
			found, has := node.Labels[label]
			matches = matches && has && found == value
		}
		if matches {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return names
}

// idle: nothing is on its way. What is accepted follows the nodes; a generation that is neither accepted nor was just
// rejected is begun.
func (c Config) idle(status *v1alpha1.GateScheduleStatus, schedule *v1alpha1.GateSchedule, others []*v1alpha1.GateSchedule,
	nodes []Node, selected []string, now time.Time) {
	if accepted := status.Accepted; accepted != nil {
		// The accepted generation's own selector counts, which a later edit may have changed.
		accepted.Nodes = Select(accepted.Spec, nodes)
		if accepted.Generation == schedule.Generation {
			status.Phase = v1alpha1.PhaseApplied
			status.Message = fmt.Sprintf("generation %d holds on %d nodes", accepted.Generation, len(selected))
			return
		}
	}
	other := conflict(schedule, others, selected)
	if rejected := status.Rejected; rejected != nil && rejected.Generation == schedule.Generation && now.Before(rejected.RetryAt.Time) &&
		!hasPassed(rejected.Reason, len(selected) > 0, other == "") {
		status.Phase = v1alpha1.PhaseRejected
		return
	}
	if len(selected) == 0 {
		c.reject(status, schedule.Generation, status.Attempts, ReasonNoNode, "no Node has the labels of nodeSelector", now)
		return
	}
	if other != "" {
		c.reject(status, schedule.Generation, status.Attempts, ReasonConflict,
			fmt.Sprintf("GateSchedule %s is older and is for the same uplink of the same nodes: change its nodeSelector or uplink, or delete one", other), now)
		return
	}
	c.begin(status, schedule, selected, now)
}

// hasPassed: the cause of a rejection is seen to be gone, so nothing has to be waited for.
func hasPassed(reason string, hasNode, isAlone bool) bool {
	return hasNode && (reason == ReasonNoNode || reason == ReasonConflict && isAlone)
}

func (c Config) begin(status *v1alpha1.GateScheduleStatus, schedule *v1alpha1.GateSchedule, selected []string, now time.Time) {
	status.Attempts++
	status.Phase = v1alpha1.PhaseChecking
	status.Message = fmt.Sprintf("generation %d is being checked on %d nodes", schedule.Generation, len(selected))
	status.Candidate = &v1alpha1.Rollout{
		Generation: schedule.Generation, Attempt: status.Attempts, Nodes: selected, Spec: schedule.Spec,
		Since: metav1.NewMicroTime(now), Until: metav1.NewMicroTime(now.Add(c.CheckMax)),
	}
}

// conflict names an older GateSchedule for the same uplink on one of the nodes. A GateSchedule that was never
// accepted on any node is no conflict.
func conflict(schedule *v1alpha1.GateSchedule, others []*v1alpha1.GateSchedule, selected []string) string {
	for _, other := range others {
		if other.UID == schedule.UID || v1alpha1.ByAge(other, schedule) > 0 {
			continue
		}
		for _, rollout := range []*v1alpha1.Rollout{other.Status.Accepted, other.Status.Candidate} {
			if rollout != nil && rollout.Spec.Uplink == schedule.Spec.Uplink &&
				slices.ContainsFunc(rollout.Nodes, func(name string) bool { return slices.Contains(selected, name) }) {
				return other.Name
			}
		}
	}
	return ""
}

// checking waits for all nodes' answers.
func (c Config) checking(status *v1alpha1.GateScheduleStatus, schedule *v1alpha1.GateSchedule, nodes []Node, selected []string, now time.Time) {
	candidate := status.Candidate
	// Nothing has changed anywhere yet, so another generation or other nodes simply begin again.
	if candidate.Generation != schedule.Generation || !slices.Equal(candidate.Nodes, selected) {
		status.Candidate = nil
		if len(selected) == 0 {
			c.reject(status, schedule.Generation, candidate.Attempt, ReasonNoNode, "no Node has the labels of nodeSelector", now)
			return
		}
		c.begin(status, schedule, selected, now)
		return
	}
	var silent []string
	var offsets []int64
	for _, name := range candidate.Nodes {
		answer, found := answerOf(nodes, name, schedule, candidate)
		switch {
		case found && answer.State == StateRefused:
			c.reject(status, candidate.Generation, candidate.Attempt, ReasonRefused, fmt.Sprintf("node %s: %s", name, answer.Message), now)
			return
		case found && answer.State == StateReady:
			offsets = append(offsets, answer.TAIOffset)
		default:
			silent = append(silent, name)
		}
	}
	if len(silent) > 0 {
		status.Message = fmt.Sprintf("generation %d: waiting for the check of node %s", candidate.Generation, strings.Join(silent, ", "))
		if !now.Before(candidate.Until.Time) {
			c.reject(status, candidate.Generation, candidate.Attempt, ReasonSilent, fmt.Sprintf(
				"no answer within %s of node %s: is its ktsn-node-agent ready?", c.CheckMax, strings.Join(silent, ", ")), now)
		}
		return
	}
	latest, earliest := slices.Max(offsets), slices.Min(offsets)
	if difference := time.Duration(latest - earliest); difference > c.ClockMax {
		c.reject(status, candidate.Generation, candidate.Attempt, ReasonClock, fmt.Sprintf(
			"the nodes' TAI clocks differ by %s, at most %s: synchronise them and set the TAI offset (ktsn doctor)", difference, c.ClockMax), now)
		return
	}
	candidate.ConfigChangeTime = Align(candidate.Spec.GateParameterTable, now.Add(c.Margin).UnixNano()+latest)
	// The instant by the nodes' clocks, less what taking back needs. A base time far ahead gives all the time there is.
	last := time.Unix(0, candidate.ConfigChangeTime-latest).Add(-c.TakeBack)
	candidate.Since, candidate.Until = metav1.NewMicroTime(now), metav1.NewMicroTime(last)
	status.Phase = v1alpha1.PhaseCommitted
	status.Message = fmt.Sprintf("generation %d takes effect at %d (TAI)", candidate.Generation, candidate.ConfigChangeTime)
}

// Align is the first instant of the schedule's own grid (base time + N cycles) that is not before `earliest`. As it lies in the
// future when it is applied, it is each port's ConfigChangeTime [802.1Q-2022 8.6.9.3]; ktsnd says so, or the agent does not
// confirm.
func Align(table v1alpha1.GateParameterTable, earliest int64) int64 {
	cycle := table.Cycle()
	base := table.AdminBaseTime
	if base >= earliest || cycle <= 0 {
		return max(base, earliest)
	}
	return base + (earliest-base+cycle-1)/cycle*cycle
}

// committed waits until every node has it.
func (c Config) committed(status *v1alpha1.GateScheduleStatus, schedule *v1alpha1.GateSchedule, nodes []Node, now time.Time) {
	candidate := status.Candidate
	var silent []string
	for _, name := range candidate.Nodes {
		answer, found := answerOf(nodes, name, schedule, candidate)
		switch {
		case found && answer.State == StateRefused:
			c.reject(status, candidate.Generation, candidate.Attempt, ReasonRefused, fmt.Sprintf("node %s: %s", name, answer.Message), now)
			return
		case found && answer.State == StateMissed, found && answer.State == StateApplied && answer.ConfigChangeTime != candidate.ConfigChangeTime:
			c.reject(status, candidate.Generation, candidate.Attempt, ReasonMissed, fmt.Sprintf("node %s: %s", name, answer.Message), now)
			return
		case found && answer.State == StateApplied:
		default:
			silent = append(silent, name)
		}
	}
	if len(silent) == 0 {
		candidate.Nodes = slices.Clone(candidate.Nodes)
		status.Accepted, status.Candidate, status.Rejected = candidate, nil, nil
		status.Phase = v1alpha1.PhaseApplied
		status.Message = fmt.Sprintf("generation %d holds on %d nodes from %d (TAI)", candidate.Generation, len(candidate.Nodes), candidate.ConfigChangeTime)
		return
	}
	status.Message = fmt.Sprintf("generation %d: waiting for node %s to apply it", candidate.Generation, strings.Join(silent, ", "))
	if !now.Before(candidate.Until.Time) {
		c.reject(status, candidate.Generation, candidate.Attempt, ReasonSilent, fmt.Sprintf(
			"node %s did not confirm in time: no node keeps it", strings.Join(silent, ", ")), now)
	}
}

// reject ends a rollout: the agents go back to what is accepted. What a node refused is tried again later than what may pass soon.
func (c Config) reject(status *v1alpha1.GateScheduleStatus, generation, attempt int64, reason, message string, now time.Time) {
	wait := c.RetryAfter
	if reason == ReasonRefused {
		wait *= 10
	}
	status.Candidate = nil
	status.Phase = v1alpha1.PhaseRejected
	status.Message = fmt.Sprintf("generation %d: %s: %s", generation, reason, message)
	status.Rejected = &v1alpha1.Rejection{
		Generation: generation, Attempt: attempt, Reason: reason, Message: message, RetryAt: metav1.NewMicroTime(now.Add(wait)),
	}
}
