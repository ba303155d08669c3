// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"net/netip"
	"slices"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// index finds in a World what belongs to a stream without a walk through all of it: a look at a large cluster asks some ten thousand times.
type index struct {
	nodes   map[string]*Node
	talkers map[talkerKey][]TalkerReport
	// pods by one of their labels.
	pods map[podLabel][]*Pod
	// prefixes of the TSN network that Nodes have, and their lengths in bits.
	prefixes map[netip.Prefix]struct{}
	lengths  []int
	// schedules that are accepted on a node, the oldest first.
	schedules map[string][]*v1alpha1.GateSchedule
}

type podLabel struct{ namespace, name, value string }

func indexOf(w *World) *index {
	i := &index{
		nodes: make(map[string]*Node, len(w.Nodes)), talkers: map[talkerKey][]TalkerReport{}, pods: map[podLabel][]*Pod{},
		prefixes: map[netip.Prefix]struct{}{}, schedules: map[string][]*v1alpha1.GateSchedule{},
	}
	for at := range w.Nodes {
		node := &w.Nodes[at]
		i.nodes[node.Name] = node
		for _, one := range node.Report.Talkers {
			key := talkerKey{node.Name, one.Namespace, one.Pod}
			i.talkers[key] = append(i.talkers[key], one)
		}
		for _, prefix := range node.Prefixes {
			i.prefixes[prefix.Masked()] = struct{}{}
			if !slices.Contains(i.lengths, prefix.Bits()) {
				i.lengths = append(i.lengths, prefix.Bits())
			}
		}
	}
	for at := range w.Pods {
		pod := &w.Pods[at]
		for name, value := range pod.Labels {
			key := podLabel{pod.Namespace, name, value}
			i.pods[key] = append(i.pods[key], pod)
		}
	}
	for _, schedule := range w.Schedules {
		if schedule.Status.Accepted == nil {
			continue
		}
		for _, name := range schedule.Status.Accepted.Nodes {
			i.schedules[name] = append(i.schedules[name], schedule)
		}
	}
	return i
}

// candidates are the pods of the stream's namespace that have the rarest label of its selector: all of its talkers are among them.
func (i *index) candidates(stream *v1alpha1.Stream) []*Pod {
	var fewest []*Pod
	first := true
	for name, value := range stream.Spec.Talker.PodSelector {
		if pods := i.pods[podLabel{stream.Namespace, name, value}]; first || len(pods) < len(fewest) {
			fewest, first = pods, false
		}
	}
	return fewest
}

// isRouted says whether a Node's prefix has the address.
func (i *index) isRouted(address netip.Addr) bool {
	return slices.ContainsFunc(i.lengths, func(bits int) bool {
		prefix, err := address.Prefix(bits)
		_, has := i.prefixes[prefix]
		return err == nil && has
	})
}
