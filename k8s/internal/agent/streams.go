// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
	"reflect"
	"time"

	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/stream"
)

// streamEvery is how often this Node's annotation about talkers may change.
const streamEvery = 10 * time.Second

// streamRetry after a look that failed.
const streamRetry = time.Second

// What VXLAN puts in front of an IP packet: the inner MAC header, VXLAN, UDP, and the outer IP header.
const (
	vxlanIPv4 = 14 + 8 + 8 + 20
	vxlanIPv6 = 14 + 8 + 8 + 40
	vlanTag   = 4
)

// streamLoop reports the interfaces of this node's talkers. It decides nothing.
func (a *Agent) streamLoop(ctx context.Context) {
	if a.dynamic == nil || !a.awaitResource(ctx, v1alpha1.Streams) {
		return
	}
	said := &saidOfStreams{}
	shares := kube.NewShares(streamsBound, trimToTalker, a.sayOver("Streams"))
	informer, synced := Follow(ctx, a.dynamic, v1alpha1.Streams, v1alpha1.Typed, shares, func() {})
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return
	}
	pause, reported := streamEvery, ""
	a.every(ctx, "streams", func() time.Duration { return pause }, nil, func(ctx context.Context) {
		text := ""
		if pause = streamEvery; ctx.Err() == nil {
			if err := a.reportStreams(ctx, informer.GetStore(), said); err != nil {
				pause, text = streamRetry, err.Error()
			}
		}
		if text != reported && text != "" {
			a.config.Log.Warn("streams", "error", text)
		}
		reported = text
	})
}

// saidOfStreams is the report that was written last.
type saidOfStreams struct {
	bare stream.Report
	at   time.Time
}

// countersEvery is how often new counters alone are written: every write goes to the agents of all nodes, so that the whole cluster has two a
// second at most.
func countersEvery(nodes int) time.Duration {
	return max(streamEvery, time.Duration(nodes)*time.Second/2)
}

// reportStreams looks once. While ktsnd does not answer, what was said last stays.
func (a *Agent) reportStreams(ctx context.Context, store cache.Store, said *saidOfStreams) error {
	node, err := a.nodes.Get(a.config.NodeName)
	if err != nil {
		return err
	}
	pods := a.pods.List()
	var streams []*v1alpha1.Stream
	for _, object := range store.List() {
		one, err := v1alpha1.StreamFrom(object)
		if err != nil {
			a.config.Log.Warn("streams", "error", err)
			continue
		}
		streams = append(streams, one)
	}
	look := streamLook{streams: streams, pods: pods}
	if len(look.talkers()) > 0 {
		look.states, _ = cnistate.Open(a.config.CNIStateDir).List() // tsn-cni reports broken ones
		a.mutex.Lock()
		look.uplink = a.file.Uplink
		a.mutex.Unlock()
		ctx, cancel := context.WithTimeout(ctx, patchMax)
		defer cancel()
		if look.list, err = a.daemon.List(ctx, &nodeapi.ListRequest{}); err != nil {
			return err
		}
		if look.gates, err = a.daemon.GetSchedule(ctx, &nodeapi.GetScheduleRequest{}); err != nil {
			return err
		}
		if look.statistics, err = a.daemon.Statistics(ctx, &nodeapi.StatisticsRequest{}); err != nil {
			return err
		}
	}
	report := look.report()
	if len(report.Talkers) == 0 && node.Annotations[stream.Annotation] == "" {
		return nil
	}
	all := a.nodes.List()
	now, bare := time.Now(), report.Bare()
	if node.Annotations[stream.Annotation] != "" && reflect.DeepEqual(bare, said.bare) && now.Sub(said.at) < countersEvery(len(all))-streamRetry {
		return nil
	}
	text, err := report.Text()
	if err != nil {
		return err
	}
	if err := a.annotate(ctx, node, stream.Annotation, text); err != nil {
		return err
	}
	said.bare, said.at = bare, now
	return nil
}

// streamLook is all that a report depends on.
type streamLook struct {
	streams    []*v1alpha1.Stream
	pods       []*kinds.Pod
	states     []*cnistate.State
	uplink     string // where an attachment names none
	list       *nodeapi.ListReply
	gates      *nodeapi.GetScheduleReply
	statistics *nodeapi.StatisticsReply
}

// talkers of this node, by namespace and name.
func (l *streamLook) talkers() map[[2]string]*kinds.Pod {
	found := map[[2]string]*kinds.Pod{}
	for _, pod := range l.pods {
		for _, one := range l.streams {
			if one.Namespace == pod.Namespace && one.Spec.Talker.Selects(pod.Labels) {
				found[[2]string{pod.Namespace, pod.Name}] = pod
				break
			}
		}
	}
	return found
}

// report joins tsn-cni's states, which map an attachment to its pod, with ktsnd's list of attachments.
func (l *streamLook) report() stream.Report {
	var report stream.Report
	type listed struct {
		attachment nodeapi.Attachment
		local      string // the tunnel's end on this node
	}
	attached := map[string]listed{}
	for _, one := range l.list.GetAttachments() {
		attached[one.GetName()] = listed{nodeapi.ReadAttachment(one.GetAttachment()), one.GetOverlay().GetLocal()}
	}
	counted := map[string]*nodeapi.AttachmentStatistics{}
	for _, one := range l.statistics.GetAttachments() {
		counted[one.GetName()] = one
	}
	talkers := l.talkers()
	for _, state := range l.states {
		pod := talkers[[2]string{state.Pod.Namespace, state.Pod.Name}]
		is, has := attached[state.Attachment]
		// A pod of the same name that was there before is another.
		if pod == nil || !has || state.Pod.UID != "" && state.Pod.UID != string(pod.UID) {
			continue
		}
		one := stream.TalkerReport{
			Namespace: state.Pod.Namespace, Pod: state.Pod.Name, UID: stream.ShortUID(pod.UID), Interface: state.IfName, Port: is.attachment.Uplink,
			Overhead: overheadOf(is.attachment, is.local), MTU: mtuOf(state), Classes: classesOf(is.attachment), StreamCounters: countersOf(counted[state.Attachment]),
		}
		if one.Port == "" {
			one.Port = l.uplink
		}
		report.Talkers = append(report.Talkers, one)
		if report.Ports == nil {
			report.Ports = map[string]stream.PortReport{}
		}
		report.Ports[one.Port] = l.port(one.Port)
	}
	return report
}

func (l *streamLook) port(device string) stream.PortReport {
	var found stream.PortReport
	for _, one := range l.list.GetPorts() {
		if one.GetDevice() == device && one.GetNetns() == "" {
			found.LinkSpeed = int64(one.GetLinkSpeed())
		}
	}
	for _, state := range l.gates.GetPorts() {
		if state.GetPort() == device {
			found.Schedule, found.HandOver = state.GetName(), rounded(state.GetHandOverNs())
			if state.GetLinkSpeed() != 0 {
				found.LinkSpeed = int64(state.GetLinkSpeed())
			}
		}
	}
	return found
}

// rounded up to 10 µs, so that it changes seldom; 0 stays.
func rounded(span uint64) int64 {
	const step = 10_000
	return int64(min((span+step-1)/step, 100_000) * step)
}

// overheadOf an attachment's overlay, or of the tag that its frames get. The tunnel is IPv4 unless its own end says otherwise.
func overheadOf(attachment nodeapi.Attachment, local string) int64 {
	vxlan := attachment.Overlay.VXLAN
	switch {
	case vxlan == nil && (attachment.VLAN != nil || attachment.PCP != nil):
		return vlanTag
	case vxlan == nil:
		return 0
	}
	if address, err := netip.ParseAddr(cmp.Or(local, vxlan.Local)); err == nil && address.Is6() && !address.Is4In6() {
		return vxlanIPv6
	}
	return vxlanIPv4
}

func mtuOf(state *cnistate.State) int64 {
	var result struct {
		Interfaces []struct {
			Name    string `json:"name"`
			MTU     int64  `json:"mtu"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if json.Unmarshal(state.Result, &result) != nil {
		return 0
	}
	for _, one := range result.Interfaces {
		if one.Name == state.IfName && one.Sandbox != "" {
			return one.MTU
		}
	}
	return 0
}

func classesOf(attachment nodeapi.Attachment) uint8 {
	var bits uint8
	for _, class := range attachment.Classes {
		if class >= 0 && class < stream.Classes {
			bits |= 1 << class
		}
	}
	return bits
}

func countersOf(one *nodeapi.AttachmentStatistics) v1alpha1.StreamCounters {
	reasons := func(counts map[string]uint64) map[string]int64 {
		var found map[string]int64
		for reason, count := range counts {
			if count == 0 {
				continue
			}
			if found == nil {
				found = map[string]int64{}
			}
			found[reason] = int64(count)
		}
		return found
	}
	return v1alpha1.StreamCounters{
		Frames: int64(one.GetSent()), Octets: int64(one.GetSentOctets()), Late: int64(one.GetLate()), Overrun: int64(one.GetOverrun()), Waited: int64(one.GetWaited()),
		Lost: reasons(one.GetDropped()), Refused: reasons(one.GetBypassed()),
		ErrorP50: int64(one.GetTransmitError().GetP50()), ErrorP99: int64(one.GetTransmitError().GetP99()),
	}
}
