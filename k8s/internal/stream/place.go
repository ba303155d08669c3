// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

// Node as the decision sees it.
type Node struct {
	Name string
	// IsAway: its kubelet has not answered for a while, so what its agent said may be old.
	IsAway bool
	// Prefixes of the TSN network that the Node has.
	Prefixes []netip.Prefix
	Report   Report
	Answers  rollout.Answers
}

// Pod that was placed on a node and has not ended.
type Pod struct {
	Namespace, Name, Node string
	// UID as ShortUID gives it.
	UID    string
	Labels map[string]string
}

// place is a stream on one node.
type place struct {
	stream   *v1alpha1.Stream
	node     *Node
	pods     []string
	uids     map[string]string
	missing  []string // of them: ktsnd has no interface of theirs
	talkers  []TalkerReport
	isLocal  bool // the listener is on the same node: the frames pass no port
	class    int
	port     string
	speed    int64
	packet   int64 // with the overlay's headers
	schedule *v1alpha1.GateSchedule
	fault    *Fault
	waits    string
	latency  int64
	handOver int64 // that was assumed
}

func (p *place) refuse(reason string, code int32, format string, arguments ...any) {
	if p.fault == nil {
		p.fault = &Fault{reason, code, fmt.Sprintf(format, arguments...)}
	}
}

// places of a stream: all nodes on which pods of its namespace are its talkers.
func (w *World) places(stream *v1alpha1.Stream) []*place {
	byNode := map[string]*place{}
	for _, pod := range w.candidates(stream) {
		if !stream.Spec.Talker.Selects(pod.Labels) {
			continue
		}
		node := w.nodes[pod.Node]
		if node == nil {
			continue
		}
		if byNode[pod.Node] == nil {
			byNode[pod.Node] = &place{stream: stream, node: node, uids: map[string]string{}}
		}
		byNode[pod.Node].pods = append(byNode[pod.Node].pods, pod.Name)
		byNode[pod.Node].uids[pod.Name] = pod.UID
	}
	places := make([]*place, 0, len(byNode))
	for _, one := range byNode {
		slices.Sort(one.pods)
		places = append(places, one)
	}
	slices.SortFunc(places, func(a, b *place) int { return strings.Compare(a.node.Name, b.node.Name) })
	for _, one := range places {
		w.locate(one)
	}
	return places
}

// locate finds the talkers' interfaces, the port and its schedule, and all that makes other streams' frames irrelevant.
func (w *World) locate(p *place) {
	spec := &p.stream.Spec
	for _, pod := range p.pods {
		found := w.talkers[talkerKey{p.node.Name, p.stream.Namespace, pod}]
		var named []TalkerReport
		var names []string
		for _, one := range found {
			if one.UID != "" && one.UID != p.uids[pod] {
				continue
			}
			names = append(names, one.Interface)
			if spec.Talker.InterfaceName == "" || spec.Talker.InterfaceName == one.Interface {
				named = append(named, one)
			}
		}
		switch {
		case len(named) == 0:
			p.missing = append(p.missing, pod)
		case len(named) > 1:
			p.refuse("SeveralInterfaces", 0, "talker.interface-name: missing, but pod %s has several: %s", pod, strings.Join(names, ", "))
		default:
			p.talkers = append(p.talkers, named[0])
		}
	}
	if p.fault != nil {
		return
	}
	if len(p.talkers) == 0 {
		p.waits = fmt.Sprintf("ktsnd has no interface %sof pod %s: has the pod a network of tsn-cni, and is ktsn-node ready on this node?",
			strings.TrimPrefix(spec.Talker.InterfaceName+" ", " "), shown(p.missing))
		if p.node.Report.Left > 0 {
			p.waits = fmt.Sprintf("the node has %d more talkers than it can report", p.node.Report.Left)
		}
		return
	}
	w.route(p)
	w.gates(p)
}

func shown(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// route: do the frames leave by a port, and is one frame small enough?
func (w *World) route(p *place) {
	spec := &p.stream.Spec
	destination, err := netip.ParseAddr(spec.DataFrameSpecification.DestinationIPAddress)
	if err != nil {
		p.refuse("Invalid", 0, "destination-ip-address: found %q, expected an IP address", spec.DataFrameSpecification.DestinationIPAddress)
		return
	}
	if interval := spec.TrafficSpecification.Interval; interval.Nanoseconds() == 0 {
		p.refuse("Invalid", 0, "interval: found %d/%d s, expected a whole number of ns", interval.Numerator, interval.Denominator)
		return
	}
	inside := slices.ContainsFunc(w.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(destination) })
	if inside {
		p.isLocal = contains(p.node.Prefixes, destination)
		if !p.isLocal && !w.isRouted(destination) {
			p.refuse("NoRoute", 0, "destination-ip-address: found %s, but no Node's prefixes (ktsn.io/tsn-prefixes) have it", destination)
		}
	}
	first := p.talkers[0]
	p.port = first.Port
	var overhead, mtu int64
	for _, one := range p.talkers {
		if one.Port != first.Port {
			p.refuse("SeveralPorts", 0, "pods %s and %s leave by different ports (%s, %s): make a Stream for each", first.Pod, one.Pod, first.Port, one.Port)
		}
		overhead = max(overhead, one.Overhead)
		if one.MTU > 0 && (mtu == 0 || one.MTU < mtu) {
			mtu = one.MTU
		}
	}
	p.packet = int64(spec.TrafficSpecification.MaxFrameSize) + overhead
	if mtu > 0 && int64(spec.TrafficSpecification.MaxFrameSize) > mtu {
		p.refuse("MaxFrameSize", CodeFrameSize, "max-frame-size: found %d, but the interface's MTU is %d", spec.TrafficSpecification.MaxFrameSize, mtu)
	}
	if p.isLocal {
		p.port = ""
		return
	}
	if p.speed = p.node.Report.Ports[p.port].LinkSpeed; p.speed == 0 {
		p.waits = fmt.Sprintf("the link speed of port %q is not known: give it as link_speed of [[port]] in ktsnd.toml", p.port)
	}
}

func contains(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(address) })
}

// gates: which schedule the port has, which class that makes of the priority, and what it says about a single frame.
func (w *World) gates(p *place) {
	priority := int(min(max(p.stream.Spec.Priority, 0), 15))
	p.class = min(priority, Classes-1)
	if p.isLocal {
		return
	}
	for _, schedule := range w.schedules[p.node.Name] {
		port := schedule.Status.Accepted.Spec.Uplink
		if port == "" {
			answer, _ := p.node.Answers.Of(schedule)
			if port = answer.Port; port == "" {
				p.waits = fmt.Sprintf("the node has not said which port GateSchedule %s is on", schedule.Name)
			}
		}
		if port == p.port {
			p.schedule = schedule
			break
		}
	}
	if p.schedule != nil {
		spec := &p.schedule.Status.Accepted.Spec
		if len(spec.PriorityMap) == 16 {
			p.class = int(min(max(spec.PriorityMap[priority], 0), Classes-1))
		}
		for _, row := range spec.GateParameterTable.QueueMaxSduTable {
			if int(row.TrafficClass) == p.class && row.QueueMaxSdu > 0 && p.packet > row.QueueMaxSdu {
				p.refuse("MaxFrameSize", CodeFrameSize, "max-frame-size: found %d, with the overlay %d, but queue-max-sdu of traffic class %d is %d",
					p.stream.Spec.TrafficSpecification.MaxFrameSize, p.packet, p.class, row.QueueMaxSdu)
			}
		}
	}
	for _, one := range p.talkers {
		if one.Classes>>p.class&1 == 0 {
			p.refuse("ClassNotAllowed", 0, "priority: found %d, which is traffic class %d, but the network of pod %s does not allow it (classes)",
				priority, p.class, one.Pod)
		}
	}
}

// demand on the port.
func (p *place) demand() Demand {
	traffic := &p.stream.Spec.TrafficSpecification
	d := Demand{
		Class: p.class, Interval: traffic.Interval.Nanoseconds(),
		Frames: int64(traffic.MaxFramesPerInterval) * int64(len(p.pods)), Frame: WireTime(WireOctets(p.packet, 0), p.speed),
	}
	if traffic.TimeAware != nil {
		d.TimeAware, d.Earliest, d.Latest = true, traffic.TimeAware.EarliestTransmitOffset, traffic.TimeAware.LatestTransmitOffset
	}
	if needs := p.stream.Spec.UserToNetworkRequirements; needs != nil {
		d.MaxLatency = needs.MaxLatency
	}
	return d
}

// on the port as its schedule makes it.
func (p *place) on(handOver int64) Port {
	p.handOver = handOver
	port := Port{Gates: OpenGates(), LinkSpeed: p.speed, HandOver: handOver}
	if p.schedule != nil {
		port.Gates = GatesOf(p.schedule.Status.Accepted.Spec.GateParameterTable)
	}
	return port
}
