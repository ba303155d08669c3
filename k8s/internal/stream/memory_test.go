// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// While the pods of a stream are replaced its place is kept; without a pod for longer, or with another generation, it is not.
func TestAPlaceIsKeptWhilePodsAreMadeAnew(t *testing.T) {
	w := cluster()
	w.Memo = NewMemo()
	w.schedule(10_000+WireTime(WireOctets(92, 50), 1e9), "a")
	older, younger := w.stream("older", nil), w.stream("younger", func(s *v1alpha1.StreamSpec) { s.Talker.PodSelector = map[string]string{"app": "two"} })
	w.Pods = append(w.Pods, Pod{"plant", "two", "a", "", map[string]string{"app": "two"}})
	second := w.Nodes[0].Report.Talkers[0]
	second.Pod = "two"
	talkers := append(w.Nodes[0].Report.Talkers, second)
	now := epoch
	says := func(want string) {
		t.Helper()
		got := w.Decide(now)
		if text := got[older.UID].NodesAccepted + " " + got[younger.UID].NodesAccepted; text != want {
			t.Errorf("%s, expected %s: %s; %s", text, want, got[older.UID].Message, got[younger.UID].Message)
		}
	}
	w.Nodes[0].Report.Talkers = talkers
	says("1/1 0/1")
	for range 2 {
		w.Nodes[0].Report.Talkers = talkers[1:]
		says("0/1 0/1")
	}
	w.Nodes[0].Report.Talkers = talkers
	says("1/1 0/1")
	w.Nodes[0].Report.Talkers = talkers[1:]
	older.Generation++
	says("0/1 1/1")
	older.Generation--
	w.Nodes[0].Report.Talkers = talkers
	says("1/1 0/1")
	pods := w.Pods
	for range 2 {
		w.Pods = pods[1:]
		for range 2 {
			now = now.Add(placeKept/2 - time.Second)
			says("0/0 0/1")
		}
		w.Pods = pods
		says("1/1 0/1")
	}
	w.Pods = pods[1:]
	older.Generation++
	says("0/0 1/1")
	older.Generation--
	w.Pods = pods
	says("1/1 0/1")
	w.Pods = pods[1:]
	now = now.Add(placeKept)
	says("0/0 1/1")
}

// A place that is kept is as large as it was: the talkers of all pods that are away.
func TestThePlaceOfSeveralPodsIsKept(t *testing.T) {
	w := cluster()
	w.Memo = NewMemo()
	frame := WireTime(WireOctets(92, 50), 1e9)
	w.schedule(10_000+2*frame, "a")
	older, younger := w.stream("older", nil), w.stream("younger", func(s *v1alpha1.StreamSpec) { s.Talker.PodSelector = map[string]string{"app": "two"} })
	for _, name := range []string{"second", "two"} {
		app := map[string]string{"app": name}
		if name == "second" {
			app = map[string]string{"on": "a"}
		}
		w.Pods = append(w.Pods, Pod{"plant", name, "a", "", app})
		talker := w.Nodes[0].Report.Talkers[0]
		talker.Pod = name
		w.Nodes[0].Report.Talkers = append(w.Nodes[0].Report.Talkers, talker)
	}
	w.Decide(epoch)
	w.Pods = w.Pods[3:]
	if got := w.Decide(epoch.Add(time.Second)); got[older.UID].NodesAccepted != "0/0" || got[younger.UID].NodesAccepted != "0/1" {
		t.Errorf("%s; %s", got[older.UID].Message, got[younger.UID].Message)
	}
	if got := w.Decide(epoch.Add(placeKept)); got[younger.UID].NodesAccepted != "1/1" {
		t.Errorf("%s", got[younger.UID].Message)
	}
}

// An object has to fit into etcd however many nodes have talkers; those with a fault are listed first.
func TestAStatusIsBounded(t *testing.T) {
	w := cluster()
	w.stream("s", func(s *v1alpha1.StreamSpec) { s.Talker.PodSelector = map[string]string{"app": "talker"} })
	for number := range 400 {
		node := w.Nodes[0]
		node.Name = fmt.Sprintf("node-%04d", number)
		node.IsAway = number == 399
		node.Report.Talkers = nil
		for pod := range 20 {
			talker := w.Nodes[0].Report.Talkers[0]
			talker.Pod = fmt.Sprintf("%s-%d-%s", node.Name, pod, strings.Repeat("x", 200))
			node.Report.Talkers = append(node.Report.Talkers, talker)
			w.Pods = append(w.Pods, Pod{"plant", talker.Pod, node.Name, "", map[string]string{"app": "talker"}})
		}
		w.Nodes = append(w.Nodes, node)
	}
	got := w.decide()["s"]
	text, err := json.Marshal(got)
	if err != nil || len(text) > 1<<20 {
		t.Errorf("%d octets, %v", len(text), err)
	}
	if len(got.Nodes) != nodesShown || got.NodesLeftOut != 402-nodesShown || got.NodesAccepted != "402/402" || got.NodesApplied != "401/402" {
		t.Errorf("%d nodes, %d left out, %s accepted, %s applied", len(got.Nodes), got.NodesLeftOut, got.NodesAccepted, got.NodesApplied)
	}
	if last := got.Nodes[nodesShown-1]; last.Name != "node-0399" || last.Applied || got.Nodes[0].Name != "a" {
		t.Errorf("%+v", last)
	}
}
