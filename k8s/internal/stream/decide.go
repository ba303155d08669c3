// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

// streamsMax bounds the streams of one port: what a look costs grows with their third power.
const streamsMax = 64

// podsShown of one node in a status, and nodesShown: an object has to fit into etcd.
const (
	podsShown  = 16
	nodesShown = 100
)

// placeKept is how long a stream that has no pod on a node any more keeps its place there: its pods are being replaced.
const placeKept = 30 * time.Second

// World is all that a decision depends on.
type World struct {
	Streams   []*v1alpha1.Stream
	Schedules []*v1alpha1.GateSchedule
	Nodes     []Node
	Pods      []Pod
	// CIDRs of the TSN network.
	CIDRs []netip.Prefix
	// HandOver in ns, kept free in front of each window's frames.
	HandOver int64
	// Memo of earlier decisions; nil: none.
	Memo *Memo

	*index
}

type talkerKey struct{ node, namespace, pod string }

type portKey struct{ node, port string }

// held is what was accepted on one port.
type held struct {
	streams []*v1alpha1.Stream
	demands []Demand
	// preempted would be there but for a younger stream of a higher rank.
	preempted []Demand
}

// sent identifies a talker and its destination: the second stream with both is refused.
type sent struct {
	talker      talkerKey
	device      string
	destination v1alpha1.DataFrameSpecification
}

// ledger of one decision.
type ledger struct {
	ports  map[portKey]*held
	sent   map[sent]string
	booked map[bookKey]booking
	// left are the nodes where a stream was accepted a moment ago and has no pod now.
	left map[types.UID][]*Node
	now  time.Time
}

// Decide makes the next status of every stream, by the object's UID. Streams are looked at in order (rank, age, name); one that is
// refused on any node takes no room on the others.
func (w *World) Decide(now time.Time) map[types.UID]v1alpha1.StreamStatus {
	w.Schedules = slices.Clone(w.Schedules)
	slices.SortFunc(w.Schedules, v1alpha1.ByAge)
	if w.Memo == nil {
		w.Memo = NewMemo()
	}
	w.Memo.turn()
	w.index = indexOf(w)
	streams := slices.Clone(w.Streams)
	slices.SortFunc(streams, v1alpha1.CompareStreams)
	book := &ledger{ports: map[portKey]*held{}, sent: map[sent]string{}, booked: map[bookKey]booking{}, left: map[types.UID][]*Node{}, now: now}
	for key, before := range w.Memo.booked {
		if node := w.nodes[key.node]; node != nil && now.Sub(before.seen) < placeKept {
			book.left[key.stream] = append(book.left[key.stream], node)
		}
	}
	all := make([][]*place, len(streams))
	for index, stream := range streams {
		all[index] = w.places(stream)
		w.accept(book, stream, all[index])
	}
	w.Memo.booked = book.booked
	w.latencies(book, all)
	statuses := map[types.UID]v1alpha1.StreamStatus{}
	for index, stream := range streams {
		statuses[stream.UID] = status(stream, all[index], now)
	}
	return statuses
}

// accept books a stream on all its nodes, or says where it does not fit.
func (w *World) accept(book *ledger, stream *v1alpha1.Stream, places []*place) {
	for _, one := range places {
		if one.fault == nil && one.waits == "" {
			w.try(book, one)
		}
	}
	if slices.ContainsFunc(places, func(p *place) bool { return p.fault != nil }) {
		return
	}
	for _, one := range places {
		if one.waits != "" {
			w.keep(book, one)
			continue
		}
		for _, talker := range one.talkers {
			book.sent[sentBy(one, talker)] = stream.Name
		}
		if one.isLocal {
			continue
		}
		book.booked[bookKey{stream.UID, one.node.Name}] = booking{stream.Generation, one.port, one.speed, one.packet, one.pods, book.now}
		port := book.port(one)
		port.streams, port.demands = append(port.streams, stream), append(port.demands, one.demand())
	}
	for _, node := range book.left[stream.UID] {
		if !slices.ContainsFunc(places, func(p *place) bool { return p.node == node }) {
			w.keep(book, &place{stream: stream, node: node})
		}
	}
}

// keep the place of a stream that waits where it was accepted a moment ago: its pods, or their attachments, are being replaced. A younger
// stream must not get the place.
func (w *World) keep(book *ledger, p *place) {
	key := bookKey{p.stream.UID, p.node.Name}
	before, has := w.Memo.booked[key]
	if !has || before.generation != p.stream.Generation {
		return
	}
	if len(p.pods) > 0 {
		before.pods, before.seen = p.pods, book.now
	}
	waits := p.waits
	p.port, p.speed, p.packet, p.pods = before.port, before.speed, before.packet, before.pods
	w.gates(p)
	p.waits = waits
	port, held := p.on(w.HandOver), book.port(p)
	if p.fault != nil || len(held.demands) >= streamsMax || w.disturbed(p, &port, held, p.demand()) != nil {
		p.fault = nil
		return
	}
	held.streams, held.demands = append(held.streams, p.stream), append(held.demands, p.demand())
	book.booked[key] = before
}

func (l *ledger) port(p *place) *held {
	key := portKey{p.node.Name, p.port}
	if l.ports[key] == nil {
		l.ports[key] = &held{}
	}
	return l.ports[key]
}

func sentBy(p *place, talker TalkerReport) sent {
	to := p.stream.Spec.DataFrameSpecification
	// One address has several spellings in IPv6.
	if address, err := netip.ParseAddr(to.DestinationIPAddress); err == nil {
		to.DestinationIPAddress = address.Unmap().String()
	}
	return sent{talkerKey{p.node.Name, talker.Namespace, talker.Pod}, talker.Interface, to}
}

// try looks whether a stream fits beside what is accepted on its port.
func (w *World) try(book *ledger, p *place) {
	for _, talker := range p.talkers {
		if other, has := book.sent[sentBy(p, talker)]; has {
			to := p.stream.Spec.DataFrameSpecification
			p.refuse("DestinationInUse", CodeDestination, "Stream %s is for the same pod %s and destination %s port %d already",
				other, talker.Pod, to.DestinationIPAddress, to.DestinationPort)
			return
		}
	}
	if p.isLocal {
		return
	}
	port, before := p.on(w.HandOver), book.port(p)
	if len(before.demands) >= streamsMax {
		p.refuse("TooManyStreams", CodeResources, "port %s has %d accepted streams already", p.port, streamsMax)
		return
	}
	own := p.demand()
	p.fault = w.disturbed(p, &port, before, own)
	if p.fault == nil || p.stream.Spec.Rank() == 0 {
		return
	}
	// Would it fit if younger ones of a higher rank were not there?
	without := &held{demands: slices.Clone(before.preempted)}
	for index, other := range before.streams {
		if other.Spec.Rank() > 0 || !p.stream.CreationTimestamp.Before(&other.CreationTimestamp) {
			without.demands = append(without.demands, before.demands[index])
		}
	}
	if w.disturbed(p, &port, without, own) == nil {
		p.fault = &Fault{"PreemptedByRank", CodePreempted, "streams of rank 0 that came later have its place: " + p.fault.Message}
		before.preempted = append(before.preempted, own)
	}
}

// disturbed says what is wrong with a demand beside those that are held: its own fault, or that of one that it would disturb.
func (w *World) disturbed(p *place, port *Port, before *held, own Demand) *Fault {
	faults, _ := w.Memo.judge(port, append(slices.Clone(before.demands), own), false)
	if fault := faults[len(before.demands)]; fault != nil {
		return fault
	}
	for index, fault := range faults {
		if fault == nil {
			continue
		}
		other := "a Stream of another namespace"
		if index < len(before.streams) && before.streams[index].Namespace == p.stream.Namespace {
			other = "Stream " + before.streams[index].Name
		}
		return &Fault{fault.Reason, fault.Code, fmt.Sprintf("%s, accepted before, would not have its place any more: %s", other, fault.Message)}
	}
	return nil
}

// latencies with all that is accepted.
func (w *World) latencies(book *ledger, all [][]*place) {
	found := map[portKey]map[types.UID]int64{}
	for _, places := range all {
		for _, p := range places {
			key := portKey{p.node.Name, p.port}
			port := book.ports[key]
			if p.isLocal || p.waits != "" || port == nil {
				continue
			}
			if found[key] == nil {
				found[key] = map[types.UID]int64{}
				on := p.on(w.HandOver)
				_, spans := w.Memo.judge(&on, port.demands, true)
				for index, stream := range port.streams {
					found[key][stream.UID] = spans[index]
				}
			}
			if span := found[key][p.stream.UID]; span < endless {
				p.latency = span
			}
		}
	}
}

// status of one stream.
func status(stream *v1alpha1.Stream, places []*place, now time.Time) v1alpha1.StreamStatus {
	next := *stream.Status.DeepCopy()
	next.ObservedGeneration = stream.Generation
	next.Nodes, next.Frames, next.Late, next.AccumulatedLatency = nil, 0, 0, 0
	next.StatusInfo = v1alpha1.StatusInfo{TalkerStatus: v1alpha1.TalkerNone}
	isRefused := slices.ContainsFunc(places, func(p *place) bool { return p.fault != nil })
	accepted, applied := 0, 0
	var refused, waiting, behind *v1alpha1.StreamNode
	for _, p := range places {
		next.Nodes = append(next.Nodes, p.status(isRefused, stream, now))
		node := &next.Nodes[len(next.Nodes)-1]
		next.AccumulatedLatency = max(next.AccumulatedLatency, node.AccumulatedLatency)
		if node.Counters != nil {
			next.Frames, next.Late = min(next.Frames+node.Counters.Frames, countMax), min(next.Late+node.Counters.Late, countMax)
		}
		switch {
		case p.fault != nil && refused == nil:
			refused = node
		case node.State == v1alpha1.StreamWaiting && waiting == nil:
			waiting = node
		case node.State == v1alpha1.StreamAccepted:
			accepted++
		}
		if node.Applied {
			applied++
		} else if behind == nil {
			behind = node
		}
	}
	next.Nodes, next.NodesLeftOut = bounded(next.Nodes)
	next.NodesAccepted, next.NodesApplied = fmt.Sprintf("%d/%d", accepted, len(places)), fmt.Sprintf("%d/%d", applied, len(places))
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&next.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reason, Message: message, ObservedGeneration: stream.Generation,
			LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
	says := func(node *v1alpha1.StreamNode) string { return fmt.Sprintf("node %s: %s", node.Name, node.Message) }
	switch {
	case len(places) == 0:
		next.Message = "no running pod of this namespace has the labels of talker.podSelector"
		set("Accepted", metav1.ConditionUnknown, "NoTalker", next.Message)
		set("Applied", metav1.ConditionFalse, "NoTalker", next.Message)
		return next
	case refused != nil:
		next.StatusInfo = v1alpha1.StatusInfo{TalkerStatus: v1alpha1.TalkerFailed, FailureCode: refused.FailureCode}
		next.Message = says(refused)
		set("Accepted", metav1.ConditionFalse, refused.Reason, next.Message)
	case waiting != nil:
		next.Message = says(waiting)
		set("Accepted", metav1.ConditionUnknown, waiting.Reason, next.Message)
	default:
		next.StatusInfo.TalkerStatus = v1alpha1.TalkerReady
		next.Message = fmt.Sprintf("accepted on %d nodes", accepted)
		set("Accepted", metav1.ConditionTrue, "Accepted", next.Message)
	}
	if behind != nil {
		set("Applied", metav1.ConditionFalse, "NodeBehind", says(behind))
		if refused == nil && waiting == nil {
			next.Message = says(behind)
		}
		return next
	}
	set("Applied", metav1.ConditionTrue, "AllApplied", fmt.Sprintf("%d nodes", len(places)))
	return next
}

// bounded leaves out nodes that would make the object too large, those where all is well before others, and says how many.
func bounded(nodes []v1alpha1.StreamNode) ([]v1alpha1.StreamNode, int32) {
	if len(nodes) <= nodesShown {
		return nodes, 0
	}
	shown := slices.Clone(nodes)
	slices.SortStableFunc(shown, func(a, b v1alpha1.StreamNode) int {
		return map[bool]int{true: 1}[a.Applied] - map[bool]int{true: 1}[b.Applied]
	})
	shown = shown[:nodesShown]
	slices.SortFunc(shown, func(a, b v1alpha1.StreamNode) int { return strings.Compare(a.Name, b.Name) })
	return shown, int32(len(nodes) - nodesShown)
}

// status of a stream on one node. `isRefused`: it is, on this node or another.
func (p *place) status(isRefused bool, stream *v1alpha1.Stream, now time.Time) v1alpha1.StreamNode {
	node := v1alpha1.StreamNode{
		Name: p.node.Name, Pods: p.pods[:min(len(p.pods), podsShown)], PodCount: int32(len(p.pods)), Port: p.port, TrafficClass: int32(p.class),
	}
	if len(p.talkers) > 0 {
		node.Counters = &v1alpha1.StreamCounters{}
		for _, talker := range p.talkers {
			add(node.Counters, talker.StreamCounters)
		}
	}
	scheduled := p.scheduled(&node)
	switch {
	case p.fault != nil:
		node.State, node.Reason, node.Message, node.FailureCode = v1alpha1.StreamRefused, p.fault.Reason, p.fault.Message, p.fault.Code
	case p.waits != "":
		node.State, node.Reason, node.Message = v1alpha1.StreamWaiting, "NotKnownYet", p.waits
	case isRefused:
		node.State, node.Reason, node.Message = v1alpha1.StreamRefused, "RefusedElsewhere", "there is room here, but not on another of its nodes"
	default:
		node.State, node.Reason, node.Message = v1alpha1.StreamAccepted, "Accepted", p.basis()
		node.AccumulatedLatency = p.latency
		if p.node.IsAway {
			node.Reason, node.Message = "NodeNotReady", "the Node is not Ready: what it said last may be old"
		} else if len(p.missing) > 0 {
			node.Reason, node.Message = "InterfaceMissing", "ktsnd has no interface of pod "+shown(p.missing)
		} else if scheduled != "" {
			node.Reason, node.Message = "ScheduleBehind", scheduled
		} else {
			node.Applied = true
		}
	}
	node.AppliedSince = metav1.NewTime(now.Truncate(time.Second))
	for _, before := range stream.Status.Nodes {
		if before.Name == node.Name && before.Applied == node.Applied && !before.AppliedSince.IsZero() {
			node.AppliedSince = before.AppliedSince
		}
	}
	return node
}

// scheduled says whether the port has the schedule that the stream was judged by; empty: it has, or there is none.
func (p *place) scheduled(node *v1alpha1.StreamNode) string {
	if p.schedule == nil {
		return ""
	}
	accepted := p.schedule.Status.Accepted
	node.GateSchedule, node.GateScheduleGeneration = p.schedule.Name, accepted.Generation
	answer, found := p.node.Answers.To(p.schedule, accepted)
	if found && answer.State == rollout.StateApplied {
		node.ConfigChangeTime = answer.ConfigChangeTime
		return ""
	}
	if found {
		return fmt.Sprintf("generation %d of GateSchedule %s: %s %s", accepted.Generation, p.schedule.Name, answer.State, answer.Message)
	}
	// A later rollout is asked about: until its instant, and where it fails, the node keeps what is accepted.
	if other, has := p.node.Answers.Of(p.schedule); has && other.Attempt > accepted.Attempt && other.State != rollout.StateFailed {
		node.ConfigChangeTime = accepted.ConfigChangeTime
		return ""
	}
	return fmt.Sprintf("generation %d of GateSchedule %s is not there yet", accepted.Generation, p.schedule.Name)
}

// basis of an acceptance.
func (p *place) basis() string {
	if p.isLocal {
		return "the destination is on this node: its frames pass no port, and no gate"
	}
	report := p.node.Report.Ports[p.port]
	if p.schedule != nil {
		text := fmt.Sprintf("by generation %d of GateSchedule %s", p.schedule.Status.Accepted.Generation, p.schedule.Name)
		if len(p.schedule.Status.Accepted.Spec.PriorityMap) == 0 {
			text += fmt.Sprintf("; it has no priority-map: class %d unless ktsnd.toml has another", p.class)
		}
		if report.HandOver > p.handOver {
			text += fmt.Sprintf("; but the port needs up to %d ns for a hand-over, and --hand-over of ktsn-controller is %d", report.HandOver, p.handOver)
		}
		return text
	}
	text := fmt.Sprintf("no GateSchedule: by the link speed of %s alone, %d bit/s", p.port, p.speed)
	if report.Schedule != "" {
		text += fmt.Sprintf("; its schedule %q is ktsnd's own and was not looked at", report.Schedule)
	}
	return text
}
