// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

// large is a cluster of so many nodes, each with ten pods, of which five are talkers of a Stream of their own to the next node. Forty nodes
// share a GateSchedule. All is in one namespace, where a selector has the most pods to choose from.
func large(nodes int) *World {
	w := &World{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, HandOver: 20_000, Memo: NewMemo()}
	var schedule *v1alpha1.GateSchedule
	for index := range nodes {
		name := fmt.Sprintf("node-%04d", index)
		if index%40 == 0 {
			schedule = &v1alpha1.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line-" + name, UID: types.UID("line-" + name), CreationTimestamp: metav1.NewTime(epoch)}}
			schedule.Status.Accepted = &v1alpha1.Rollout{Generation: 1, Attempt: 1, Spec: v1alpha1.GateScheduleSpec{
				GateParameterTable: v1alpha1.GateParameterTable{GateEnabled: true, AdminControlList: []v1alpha1.GateControlEntry{
					{GateStatesValue: 64, TimeIntervalValue: 500_000}, {GateStatesValue: 191, TimeIntervalValue: 500_000},
				}},
			}}
			w.Schedules = append(w.Schedules, schedule)
		}
		schedule.Status.Accepted.Nodes = append(schedule.Status.Accepted.Nodes, name)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(index >> 8), byte(index), 0}), 24)
		node := Node{Name: name, Prefixes: []netip.Prefix{prefix}, Report: Report{Ports: map[string]PortReport{"eth0": {LinkSpeed: 1_000_000_000}}},
			Answers: rollout.Answers{schedule.Name: {UID: string(schedule.UID), Generation: 1, Attempt: 1, State: rollout.StateApplied, Port: "eth0", ConfigChangeTime: 1}}}
		next := (index + 1) % nodes
		for number := range 10 {
			pod := fmt.Sprintf("pod-%04d-%d", index, number)
			w.Pods = append(w.Pods, Pod{"plant", pod, name, "", map[string]string{"app": "cell", "cell": pod, "line": schedule.Name}})
			if number >= 5 {
				continue
			}
			node.Report.Talkers = append(node.Report.Talkers, TalkerReport{Namespace: "plant", Pod: pod, Interface: "net1", Port: "eth0", Overhead: 50, MTU: 1450, Classes: 255})
			w.Streams = append(w.Streams, &v1alpha1.Stream{
				ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: pod, UID: types.UID(pod), Generation: 1, CreationTimestamp: metav1.NewTime(epoch)},
				Spec: v1alpha1.StreamSpec{
					Talker: v1alpha1.Talker{PodSelector: map[string]string{"app": "cell", "cell": pod}}, Priority: 6,
					DataFrameSpecification: v1alpha1.DataFrameSpecification{
						DestinationIPAddress: netip.AddrFrom4([4]byte{10, byte(next >> 8), byte(next), 2}).String(), DestinationPort: int32(5000 + number)},
					TrafficSpecification: v1alpha1.TrafficSpecification{
						Interval: v1alpha1.Interval{Numerator: 1, Denominator: 1000}, MaxFramesPerInterval: 1, MaxFrameSize: 92},
				},
			})
		}
		w.Nodes = append(w.Nodes, node)
	}
	return w
}

// The index finds the pods, routes and schedules that a walk through everything finds, and does not look at all pods for it.
func TestTheIndexFindsWhatAWalkFinds(t *testing.T) {
	w := large(50)
	random := rand.New(rand.NewPCG(1, 2))
	for at := range w.Pods {
		w.Pods[at].Namespace = []string{"plant", "office"}[random.IntN(2)]
	}
	w.Nodes[7].Prefixes = append(w.Nodes[7].Prefixes, netip.MustParsePrefix("10.200.128.0/17"), netip.MustParsePrefix("fd99:1::/64"))
	found := indexOf(w)
	for range 2000 {
		pod := w.Pods[random.IntN(len(w.Pods))]
		one := w.Streams[random.IntN(len(w.Streams))]
		one.Spec.Talker.PodSelector = map[string]string{}
		for name, value := range pod.Labels {
			if random.IntN(2) == 0 {
				one.Spec.Talker.PodSelector[name] = []string{value, value, "other"}[random.IntN(3)]
			}
		}
		var walked, picked []string
		for _, pod := range w.Pods {
			if pod.Namespace == one.Namespace && one.Spec.Talker.Selects(pod.Labels) {
				walked = append(walked, pod.Name)
			}
		}
		for _, pod := range found.candidates(one) {
			if one.Spec.Talker.Selects(pod.Labels) {
				picked = append(picked, pod.Name)
			}
		}
		if !slices.Equal(walked, picked) {
			t.Fatalf("%v: %v, a walk finds %v", one.Spec.Talker.PodSelector, picked, walked)
		}
		if cell := one.Spec.Talker.PodSelector["cell"]; cell != "" && len(found.candidates(one)) > 1 {
			t.Fatalf("%d pods were looked at for one", len(found.candidates(one)))
		}
		address := netip.AddrFrom4([4]byte{10, []byte{0, 200}[random.IntN(2)], byte(random.IntN(256)), byte(random.IntN(256))})
		if random.IntN(4) == 0 {
			address = netip.MustParseAddr([]string{"fd99:1::5", "fd99:2::5", "::ffff:10.0.0.1", "255.255.255.255"}[random.IntN(4)])
		}
		isWalked := slices.ContainsFunc(w.Nodes, func(n Node) bool { return contains(n.Prefixes, address) })
		if found.isRouted(address) != isWalked {
			t.Fatalf("%s: routed %v, a walk finds %v", address, !isWalked, isWalked)
		}
	}
	for _, node := range w.Nodes {
		walked := slices.DeleteFunc(slices.Clone(w.Schedules), func(s *v1alpha1.GateSchedule) bool { return !slices.Contains(s.Status.Accepted.Nodes, node.Name) })
		if !slices.Equal(found.schedules[node.Name], walked) {
			t.Fatalf("%s: %v, a walk finds %v", node.Name, found.schedules[node.Name], walked)
		}
	}
}

// A look at 2,000 Nodes, 20,000 pods and 10,000 Streams of which none has changed.
func BenchmarkDecide2000Nodes(b *testing.B) {
	w := large(2000)
	w.Decide(epoch)
	for b.Loop() {
		w.Decide(epoch)
	}
}
