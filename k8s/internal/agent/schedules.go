// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

// ours is the prefix of the names of schedules that were applied for a GateSchedule. The agent takes back no others.
const ours = "k8s/"

// scheduler applies to this node's ktsnd what the statuses of the GateSchedules say. Each step depends only on these and on ktsnd's own state, so
// the next step repairs whatever was lost.
type scheduler struct {
	node   string
	daemon nodeapi.NodeClient
	log    *slog.Logger
	now    func() time.Time
}

// holding is the schedule that a port must have.
type holding struct {
	schedule *v1alpha1.GateSchedule
	rollout  *v1alpha1.Rollout
}

// reconcile does one step. `before` has this node's last answers: a schedule that was Ready stays Ready. `nodes` has the answers of all nodes. It
// fails when ktsnd does not answer.
func (s *scheduler) reconcile(ctx context.Context, schedules []*v1alpha1.GateSchedule, uplink string, before rollout.Answers, nodes []rollout.Node) (rollout.Answers, error) {
	reply, err := s.daemon.GetSchedule(ctx, &nodeapi.GetScheduleRequest{})
	if err != nil {
		return before, err
	}
	offset := func(state *nodeapi.ScheduleState) int64 { return int64(state.GetCurrentTime()) - s.now().UnixNano() }
	states := map[string]*nodeapi.ScheduleState{}
	for _, state := range reply.GetPorts() {
		states[state.GetPort()] = state
	}
	schedules = slices.Clone(schedules)
	slices.SortFunc(schedules, v1alpha1.ByAge)
	answers, taken := rollout.Answers{}, map[string]holding{}
	for _, schedule := range schedules {
		candidate, accepted := s.concerns(schedule.Status.Candidate), s.concerns(schedule.Status.Accepted)
		target, given := accepted, false
		if candidate != nil && candidate.ConfigChangeTime != 0 {
			// Every agent decides this by itself, as the controller may be away: without all confirmations in time no node keeps the schedule.
			given = !s.now().Before(candidate.Until.Time) && !rollout.Confirmed(schedule, candidate, nodes)
			if !given {
				target = candidate
			}
		}
		if first(target, candidate) == nil {
			continue
		}
		port := first(target, candidate).Spec.Uplink
		if port == "" {
			port = uplink
		}
		if other, has := taken[port]; has {
			answers[schedule.Name] = answerTo(schedule, first(candidate, target), rollout.StateRefused,
				fmt.Sprintf("port %s has GateSchedule %s, which is older", port, other.schedule.Name), port)
			continue
		}
		if target != nil {
			taken[port] = holding{schedule, target}
			answers[schedule.Name] = s.hold(ctx, schedule, target, target == candidate, port, states[port])
		}
		switch {
		case candidate == nil || target == candidate:
		case given:
			answers[schedule.Name] = answerTo(schedule, candidate, rollout.StateMissed, "not all nodes confirmed in time", port)
		default:
			answer, known := before[schedule.Name]
			if !known || answer.State != rollout.StateReady || answer.UID != string(schedule.UID) || answer.Attempt != candidate.Attempt {
				answer = s.check(ctx, schedule, candidate, port, offset)
			}
			answers[schedule.Name] = answer
		}
	}
	s.forget(ctx, states, taken)
	return answers, nil
}

// concerns returns the rollout if this node is part of it, else nil.
func (s *scheduler) concerns(one *v1alpha1.Rollout) *v1alpha1.Rollout {
	if one == nil || !slices.Contains(one.Nodes, s.node) {
		return nil
	}
	return one
}

func first(rollouts ...*v1alpha1.Rollout) *v1alpha1.Rollout {
	for _, one := range rollouts {
		if one != nil {
			return one
		}
	}
	return nil
}

func answerTo(schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, state, message, port string) rollout.Answer {
	return rollout.Answer{
		UID: string(schedule.UID), Generation: of.Generation, Attempt: of.Attempt, State: state, Message: message, Port: port,
	}
}

// refusal makes the answer for an error of ktsnd: Failed where ktsnd is away, which is tried again, else Refused.
func refusal(schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, err error, port string) rollout.Answer {
	state := rollout.StateRefused
	if nodeapi.IsAbsent(err) {
		state = rollout.StateFailed
	}
	return answerTo(schedule, of, state, err.Error(), port)
}

// check asks ktsnd whether it would accept the schedule.
func (s *scheduler) check(ctx context.Context, schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, port string,
	offset func(*nodeapi.ScheduleState) int64) rollout.Answer {
	// An older ktsnd does not know check_only, and would apply.
	if err := compatible(ctx, s.daemon); err != nil {
		// An update ends that.
		return answerTo(schedule, of, rollout.StateFailed, err.Error(), port)
	}
	request := requestOf(schedule, of, port)
	request.CheckOnly = true
	reply, err := s.daemon.ApplySchedule(ctx, request)
	if err != nil {
		return refusal(schedule, of, err, port)
	}
	answer := answerTo(schedule, of, rollout.StateReady, "", port)
	answer.TAIOffset = offset(reply.GetState())
	return answer
}

// hold applies the schedule to the port. While the rollout is only Committed, the ConfigChangeTime must be the common one.
func (s *scheduler) hold(ctx context.Context, schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, committed bool, port string,
	state *nodeapi.ScheduleState) rollout.Answer {
	request := requestOf(schedule, of, port)
	if state.GetName() != request.Name || state.GetAdmin().GetBaseTime() != request.Admin.BaseTime {
		if committed && int64(state.GetCurrentTime()) >= of.ConfigChangeTime {
			return answerTo(schedule, of, rollout.StateMissed, "its ConfigChangeTime had passed before it came here", port)
		}
		reply, err := s.daemon.ApplySchedule(ctx, request)
		if err != nil {
			return refusal(schedule, of, err, port)
		}
		state = reply.GetState()
		s.log.Info("gate schedule applied", "port", port, "gateSchedule", schedule.Name, "generation", of.Generation,
			"configChangeTime", state.GetConfigChangeTime())
	}
	answer := answerTo(schedule, of, rollout.StateApplied, "", port)
	answer.ConfigChangeTime = of.ConfigChangeTime
	if !state.GetIsOpen() {
		answer.Message = "no attachment uses the port yet: its gates begin with the first"
		return answer
	}
	if at := int64(state.GetConfigChangeTime()); at != 0 {
		answer.ConfigChangeTime = at
	}
	if committed && answer.ConfigChangeTime != of.ConfigChangeTime {
		answer.State = rollout.StateMissed
		answer.Message = fmt.Sprintf("its ConfigChangeTime would be %d", answer.ConfigChangeTime)
	}
	return answer
}

// forget gives a port back to ktsnd's configuration when its GateSchedule is gone.
func (s *scheduler) forget(ctx context.Context, states map[string]*nodeapi.ScheduleState, taken map[string]holding) {
	for port, state := range states {
		if _, has := taken[port]; has || !strings.HasPrefix(state.GetName(), ours) {
			continue
		}
		if _, err := s.daemon.ApplySchedule(ctx, &nodeapi.ApplyScheduleRequest{Port: port}); err != nil {
			s.log.Warn("a gate schedule that is not wanted any more stays", "port", port, "error", err)
			continue
		}
		s.log.Info("gate schedule taken back", "port", port, "was", state.GetName())
	}
}

// nameOf makes the name of a schedule at ktsnd, from the GateSchedule and its generation.
func nameOf(schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout) string {
	sum := sha256.Sum256([]byte(schedule.UID))
	name := schedule.Name
	if len(name) > 32 {
		name = name[:32]
	}
	return fmt.Sprintf("%s%s@%d.%s", ours, name, of.Generation, hex.EncodeToString(sum[:4]))
}

// requestOf makes ktsnd's request for the schedule. The base time is the common ConfigChangeTime, once there is one: it lies on the
// schedule's own grid, so the gates are where the spec's base time puts them.
func requestOf(schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, port string) *nodeapi.ApplyScheduleRequest {
	table := of.Spec.GateParameterTable
	base := table.AdminBaseTime
	if of.ConfigChangeTime != 0 {
		base = of.ConfigChangeTime
	}
	admin := &nodeapi.GateParameters{
		GateEnabled: table.GateEnabled, BaseTime: uint64(base), CycleTime: uint64(table.Cycle()),
		CycleTimeExtension: uint64(table.AdminCycleTimeExtension),
	}
	if table.AdminGateStates != nil {
		states := uint32(*table.AdminGateStates)
		admin.GateStates = &states
	}
	for _, entry := range table.AdminControlList {
		admin.ControlList = append(admin.ControlList, &nodeapi.GateControlEntry{
			OperationName: entry.OperationName, GateStatesValue: uint32(entry.GateStatesValue), TimeIntervalValue: uint64(entry.TimeIntervalValue),
		})
	}
	request := &nodeapi.ApplyScheduleRequest{
		Port: port, Admin: admin, Name: nameOf(schedule, of), LinkSpeed: uint64(of.Spec.LinkSpeed),
	}
	for _, row := range table.QueueMaxSduTable {
		request.QueueMaxSdu = append(request.QueueMaxSdu, &nodeapi.QueueMaxSdu{
			TrafficClass: uint32(row.TrafficClass), QueueMaxSdu: uint32(row.QueueMaxSdu),
		})
	}
	for _, class := range of.Spec.PriorityMap {
		request.PriorityMap = append(request.PriorityMap, uint32(class))
	}
	return request
}
