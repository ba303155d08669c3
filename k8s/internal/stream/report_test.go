// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/api/v1alpha1"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

func talkers(count, nameLength, reasons int) Report {
	report := Report{Ports: map[string]PortReport{"eth0": {LinkSpeed: 1e9, Schedule: "k8s/line@3.01020304"}}}
	for index := range count {
		one := TalkerReport{
			Namespace: "plant", Pod: fmt.Sprintf("talker-%04d%s", index, strings.Repeat("x", nameLength)), UID: "1a2b3c4d", Interface: "net1", Port: "eth0", Overhead: 50,
			MTU: 1450, Classes: 255, StreamCounters: v1alpha1.StreamCounters{Frames: 1 << 40, Octets: 1 << 50, Late: 1, Overrun: 2, ErrorP50: 900, ErrorP99: 4000},
		}
		for reason := range reasons {
			if one.Lost == nil {
				one.Lost = map[string]int64{}
			}
			one.Lost[fmt.Sprintf("reason_%02d", reason)] = 1 << 30
		}
		report.Talkers = append(report.Talkers, one)
	}
	return report
}

// 200 streams, each with a pod of its own, fit with all their counters; whatever there is, the annotation has its bound, and what is
// left out is counted.
func TestAReportHasABound(t *testing.T) {
	for _, c := range []struct{ count, name, reasons, left int }{
		{0, 0, 0, 0}, {200, 10, 2, 0}, {200, 10, 20, 0}, {200, 240, 16, 1}, {1000, 10, 2, 1}, {5000, 240, 30, 1},
	} {
		report := talkers(c.count, c.name, c.reasons)
		text, err := report.Text()
		if err != nil || len(text) > sizeMax {
			t.Fatalf("%+v: %d octets, %v", c, len(text), err)
		}
		read := ParseReport(text)
		if len(read.Talkers)+read.Left != c.count || (read.Left > 0) != (c.left > 0) {
			t.Errorf("%+v: %d talkers, %d left", c, len(read.Talkers), read.Left)
		}
		if c.left > 0 && len(text) < sizeMax*9/10 {
			t.Errorf("%+v: only %d octets are used", c, len(text))
		}
		if c.left == 0 && c.reasons < 10 && !reflect.DeepEqual(read, report) {
			t.Errorf("%+v: another one comes back", c)
		}
	}
}

func TestWhatIsReadIsBounded(t *testing.T) {
	read := ParseReport(`{"ports":{"eth0":{"linkSpeed":99,"schedule":"a b"},"eth1":{"linkSpeed":1000000}},"left":-3,"talkers":[
		{"namespace":"n","pod":"p","interface":"net1","port":"eth0","frames":-1,"late":9223372036854775807,"lost":{"x":-1,"y":5,"":2}},
		{"namespace":"n","pod":"p\n","interface":"net1"},{"namespace":"n","pod":"q","interface":"averylonginterface"},
		{"namespace":"n","pod":"q","interface":"net1","overhead":257},{"namespace":"n","pod":"q","interface":"net1","mtu":-1}]}`)
	want := Report{Ports: map[string]PortReport{"eth0": {}, "eth1": {LinkSpeed: 1_000_000}}, Talkers: []TalkerReport{{
		Namespace: "n", Pod: "p", Interface: "net1", Port: "eth0", StreamCounters: v1alpha1.StreamCounters{Late: countMax, Lost: map[string]int64{"y": 5}},
	}}}
	if !reflect.DeepEqual(read, want) {
		t.Errorf("%+v", read)
	}
}

func FuzzParseReport(f *testing.F) {
	text, _ := talkers(2, 3, 2).Text()
	f.Add(text)
	f.Add(`{"talkers":[{"lost":null}],"ports":{"":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		report := ParseReport(text)
		var sum v1alpha1.StreamCounters
		for _, one := range report.Talkers {
			add(&sum, one.StreamCounters)
		}
		if len(report.Talkers) > talkersMax || sum.Frames < 0 || sum.Octets < 0 || len(sum.Lost) > reasonsMax {
			t.Errorf("%+v", sum)
		}
	})
}

func TestOnlyReported(t *testing.T) {
	node := func(annotations map[string]string) *kinds.Node {
		return &kinds.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: annotations}}
	}
	before := node(map[string]string{Annotation: "1", "ktsn.io/vtep": "x"})
	labelled := node(map[string]string{Annotation: "2", "ktsn.io/vtep": "x"})
	labelled.Labels = map[string]string{"a": "b"}
	for after, want := range map[*kinds.Node]bool{
		node(map[string]string{Annotation: "2", "ktsn.io/vtep": "x"}): true, node(map[string]string{"ktsn.io/vtep": "x"}): true,
		node(map[string]string{Annotation: "1", "ktsn.io/vtep": "y"}): false, labelled: false,
	} {
		if OnlyReported(before, after) != want {
			t.Errorf("%+v: %v", after.ObjectMeta, !want)
		}
	}
	if OnlyReported(&kinds.Pod{}, &kinds.Pod{}) {
		t.Error("Pods change as they like")
	}
}
