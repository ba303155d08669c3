// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// Annotation of a Node: its agent's answers, by GateSchedule.
const Annotation = "ktsn.io/schedule-status"

// States of an answer.
const (
	// StateReady: ktsnd would take it.
	StateReady = "Ready"
	// StateRefused: ktsnd does not take it.
	StateRefused = "Refused"
	// StateApplied: ktsnd has it.
	StateApplied = "Applied"
	// StateMissed: it came too late for its ConfigChangeTime.
	StateMissed = "Missed"
	// StateFailed: ktsnd did not answer; tried again.
	StateFailed = "Failed"
)

var states = []string{StateReady, StateRefused, StateApplied, StateMissed, StateFailed}

// stateUnknown is what no agent says.
const stateUnknown = "Unknown"

// answersMax bounds what is read of another's annotation.
const answersMax = 64 << 10

// Answer is about one rollout.
type Answer struct {
	// UID of the GateSchedule: an object that was deleted and made again has another.
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	Attempt    int64  `json:"attempt"`
	State      string `json:"state"`
	Message    string `json:"message,omitempty"`
	// TAIOffset is the node's TAI less its UTC, in nanoseconds.
	TAIOffset int64 `json:"taiOffset,omitempty"`
	// Port that it is on.
	Port             string `json:"port,omitempty"`
	ConfigChangeTime int64  `json:"configChangeTime,omitempty"`
}

// Answers by the GateSchedule's name.
type Answers map[string]Answer

// ParseAnswers reads a Node's annotation. What cannot be read is no answer.
func ParseAnswers(text string) Answers {
	answers := Answers{}
	if len(text) > answersMax || json.Unmarshal([]byte(text), &answers) != nil {
		return Answers{}
	}
	for name, answer := range answers {
		if !slices.Contains(states, answer.State) {
			answer.State = stateUnknown
		}
		answer.Message, answer.Port = Printable(answer.Message, messageMax), Printable(answer.Port, portMax)
		answers[name] = answer
	}
	return answers
}

// Lengths of what is read; it goes into objects that others read.
const (
	messageMax = 500
	portMax    = 15
)

// Printable shortens a text of another program, and removes control characters.
func Printable(text string, length int) string {
	text = text[:min(len(text), length)]
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Of gives what is said of a GateSchedule, whichever rollout of it it is about.
func (a Answers) Of(schedule *v1alpha1.GateSchedule) (Answer, bool) {
	answer, found := a[schedule.Name]
	return answer, found && answer.UID == string(schedule.UID)
}

// Annotation is the annotation's text.
func (a Answers) Annotation() (string, error) {
	data, err := json.Marshal(a)
	return string(data), err
}

// To gives the answer to exactly this rollout.
func (a Answers) To(schedule *v1alpha1.GateSchedule, rollout *v1alpha1.Rollout) (Answer, bool) {
	answer, found := a.Of(schedule)
	return answer, found && answer.Generation == rollout.Generation && answer.Attempt == rollout.Attempt
}

// answerOf finds a node's answer to exactly this rollout.
func answerOf(nodes []Node, name string, schedule *v1alpha1.GateSchedule, rollout *v1alpha1.Rollout) (Answer, bool) {
	index := slices.IndexFunc(nodes, func(node Node) bool { return node.Name == name })
	if index < 0 {
		return Answer{}, false
	}
	return nodes[index].Answers.To(schedule, rollout)
}

// Confirmed says whether every node of a rollout has said that it has it.
func Confirmed(schedule *v1alpha1.GateSchedule, of *v1alpha1.Rollout, nodes []Node) bool {
	return !slices.ContainsFunc(of.Nodes, func(name string) bool {
		answer, found := answerOf(nodes, name, schedule, of)
		return !found || answer.State != StateApplied || answer.ConfigChangeTime != of.ConfigChangeTime
	})
}

// summary is what each node of the candidate, else of what is accepted, says.
func summary(schedule *v1alpha1.GateSchedule, status v1alpha1.GateScheduleStatus, nodes []Node) []v1alpha1.NodeStatus {
	rollout := status.Candidate
	if rollout == nil {
		rollout = status.Accepted
	}
	if rollout == nil {
		return nil
	}
	found := make([]v1alpha1.NodeStatus, 0, len(rollout.Nodes))
	for _, name := range rollout.Nodes {
		one := v1alpha1.NodeStatus{Name: name, State: "Waiting"}
		if answer, ok := answerOf(nodes, name, schedule, rollout); ok {
			one.State, one.Generation, one.ConfigChangeTime, one.Message = answer.State, answer.Generation, answer.ConfigChangeTime, answer.Message
		}
		found = append(found, one)
	}
	return found
}

// conditions: Accepted says whether the newest generation holds, InSync whether all selected nodes have what is accepted.
func conditions(status *v1alpha1.GateScheduleStatus, generation int64, now time.Time) {
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: generation,
			LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
	switch status.Phase {
	case v1alpha1.PhaseApplied:
		set("Accepted", metav1.ConditionTrue, "Applied", status.Message)
	case v1alpha1.PhaseRejected:
		set("Accepted", metav1.ConditionFalse, status.Rejected.Reason, status.Message)
	default:
		set("Accepted", metav1.ConditionUnknown, status.Phase, status.Message)
	}
	if status.Accepted == nil || status.Candidate != nil {
		return
	}
	for _, node := range status.Nodes {
		if node.State != StateApplied {
			set("InSync", metav1.ConditionFalse, "NodeBehind", fmt.Sprintf("node %s: %s %s", node.Name, node.State, node.Message))
			return
		}
	}
	set("InSync", metav1.ConditionTrue, "AllApplied", fmt.Sprintf("%d nodes", len(status.Nodes)))
}
