// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// Annotation of a Node: what its agent knows of the interfaces of talkers.
const Annotation = "ktsn.io/stream-status"

// Bounds of a report. A Node's annotations may have 256 KiB together.
const (
	sizeMax    = 64 << 10
	talkersMax = 1024
	portsMax   = 64
	reasonsMax = 32
	nameMax    = 253
)

// Report of one node.
type Report struct {
	Ports   map[string]PortReport `json:"ports,omitempty"`
	Talkers []TalkerReport        `json:"talkers,omitempty"`
	// Left counts talkers that there was no room for.
	Left int `json:"left,omitempty"`
}

// PortReport is what ktsnd says of a port.
type PortReport struct {
	// LinkSpeed in bit/s; 0: not known.
	LinkSpeed int64 `json:"linkSpeed,omitempty"`
	// HandOver that ktsnd assumes, rounded up to 10 µs, so that it seldom changes; 0: not known.
	HandOver int64 `json:"handOver,omitempty"`
	// Schedule is the name of the gate schedule it has.
	Schedule string `json:"schedule,omitempty"`
}

// TalkerReport is one interface of one pod that ktsnd has attached.
type TalkerReport struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// UID of the pod, its first characters: a new pod of the same name has another.
	UID       string `json:"uid,omitempty"`
	Interface string `json:"interface"`
	Port      string `json:"port,omitempty"`
	// Overhead of the overlay, in octets.
	Overhead int64 `json:"overhead,omitempty"`
	// MTU of the interface; 0: not known.
	MTU int64 `json:"mtu,omitempty"`
	// Classes that the attachment allows, as bits.
	Classes uint8 `json:"classes"`
	v1alpha1.StreamCounters
}

const uidLength = 8

// ShortUID is what a report has of a pod's UID.
func ShortUID(uid types.UID) string { return string(uid[:min(len(uid), uidLength)]) }

// Bare is a report without its counters: what decisions depend on.
func (r Report) Bare() Report {
	r.Talkers = slices.Clone(r.Talkers)
	for index := range r.Talkers {
		r.Talkers[index].StreamCounters = v1alpha1.StreamCounters{}
	}
	return r
}

// Text of the annotation. Talkers are in a fixed order; what there is no room for goes: first the counters by reason, then whole talkers.
func (r Report) Text() (string, error) {
	r.Talkers = slices.Clone(r.Talkers)
	slices.SortFunc(r.Talkers, func(a, b TalkerReport) int {
		return strings.Compare(a.Namespace+"/"+a.Pod+"/"+a.Interface, b.Namespace+"/"+b.Pod+"/"+b.Interface)
	})
	if len(r.Talkers) > talkersMax {
		r.Left, r.Talkers = r.Left+len(r.Talkers)-talkersMax, r.Talkers[:talkersMax]
	}
	text, err := json.Marshal(r)
	if err != nil || len(text) <= sizeMax {
		return string(text), err
	}
	for index := range r.Talkers {
		r.Talkers[index].Lost, r.Talkers[index].Refused = nil, nil
	}
	for {
		if text, err = json.Marshal(r); err != nil || len(text) <= sizeMax || len(r.Talkers) == 0 {
			return string(text), err
		}
		// The last ones, by the octets that are too many; at least one.
		over, cut := len(text)-sizeMax, 0
		for cut < len(r.Talkers) && over > 0 {
			cut++
			one, err := json.Marshal(r.Talkers[len(r.Talkers)-cut])
			if err != nil {
				return "", err
			}
			over -= len(one)
		}
		r.Left += cut
		r.Talkers = r.Talkers[:len(r.Talkers)-cut]
	}
}

// ParseReport reads a Node's annotation. What cannot be read, or is beyond the bounds, is not there.
func ParseReport(text string) Report {
	var report Report
	if len(text) > sizeMax || json.Unmarshal([]byte(text), &report) != nil {
		return Report{}
	}
	report.Left = max(report.Left, 0)
	if len(report.Ports) > portsMax {
		report.Ports = nil
	}
	for name, port := range report.Ports {
		if !isName(name, 15) || port.LinkSpeed < 1_000_000 || port.LinkSpeed > 10_000_000_000_000 {
			port.LinkSpeed = 0
		}
		port.HandOver = min(max(port.HandOver, 0), 1_000_000_000)
		if !isName(port.Schedule, nameMax) {
			port.Schedule = ""
		}
		report.Ports[name] = port
	}
	report.Talkers = slices.DeleteFunc(report.Talkers[:min(len(report.Talkers), talkersMax)], func(t TalkerReport) bool {
		return !isName(t.Namespace, nameMax) || !isName(t.Pod, nameMax) || !isName(t.UID, uidLength) || !isName(t.Interface, 15) || !isName(t.Port, 15) ||
			t.Overhead < 0 || t.Overhead > 256 || t.MTU < 0
	})
	for index := range report.Talkers {
		bound(&report.Talkers[index].StreamCounters)
	}
	return report
}

// OnlyReported is true when only such a report of a Node has changed. A report changes every ten seconds on every node, and only
// ktsn-controller reads it.
func OnlyReported(before, after any) bool {
	was, isNode := before.(*kinds.Node)
	is, _ := after.(*kinds.Node)
	if !isNode || is == nil {
		return false
	}
	others := func(node *kinds.Node) map[string]string {
		annotations := maps.Clone(node.Annotations)
		delete(annotations, Annotation)
		return annotations
	}
	return maps.Equal(others(was), others(is)) && maps.Equal(was.Labels, is.Labels) && was.UID == is.UID &&
		was.DeletionTimestamp.Equal(is.DeletionTimestamp) && slices.Equal(was.Status.Addresses, is.Status.Addresses)
}

func isName(text string, length int) bool {
	return len(text) <= length && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 127 })
}

// countMax keeps sums over many nodes within what JavaScript and others read exactly.
const countMax = 1 << 52

func bound(c *v1alpha1.StreamCounters) {
	for _, value := range []*int64{&c.Frames, &c.Octets, &c.Late, &c.Overrun, &c.Waited, &c.ErrorP50, &c.ErrorP99} {
		*value = min(max(*value, 0), countMax)
	}
	for _, counts := range []*map[string]int64{&c.Lost, &c.Refused} {
		if len(*counts) > reasonsMax {
			*counts = nil
		}
		maps.DeleteFunc(*counts, func(reason string, count int64) bool { return reason == "" || !isName(reason, 32) || count <= 0 })
		for reason, count := range *counts {
			(*counts)[reason] = min(count, countMax)
		}
	}
}

// add the counters of another talker; the percentiles are the worst one's.
func add(sum *v1alpha1.StreamCounters, one v1alpha1.StreamCounters) {
	sum.Frames, sum.Octets = min(sum.Frames+one.Frames, countMax), min(sum.Octets+one.Octets, countMax)
	sum.Late, sum.Overrun = min(sum.Late+one.Late, countMax), min(sum.Overrun+one.Overrun, countMax)
	sum.Waited = min(sum.Waited+one.Waited, countMax)
	sum.ErrorP50, sum.ErrorP99 = max(sum.ErrorP50, one.ErrorP50), max(sum.ErrorP99, one.ErrorP99)
	sum.Lost, sum.Refused = addReasons(sum.Lost, one.Lost), addReasons(sum.Refused, one.Refused)
}

func addReasons(sum, one map[string]int64) map[string]int64 {
	for reason, count := range one {
		if _, known := sum[reason]; !known && len(sum) >= reasonsMax {
			continue // of a node that makes up reasons
		}
		if sum == nil {
			sum = map[string]int64{}
		}
		sum[reason] = min(sum[reason]+count, countMax)
	}
	return sum
}
