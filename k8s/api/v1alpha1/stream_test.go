// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStreamsSurviveTheAPI(t *testing.T) {
	since := metav1.NewTime(time.Unix(1_800_000_000, 0))
	want := &Stream{
		TypeMeta:   metav1.TypeMeta{APIVersion: "ktsn.io/v1alpha1", Kind: "Stream"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"},
		Spec: StreamSpec{
			Talker: Talker{PodSelector: map[string]string{"a": "b"}, InterfaceName: "net1"}, StreamRank: &StreamRank{Rank: 0}, Priority: 6,
			DataFrameSpecification: DataFrameSpecification{DestinationIPAddress: "10.99.1.2", DestinationPort: 5000},
			TrafficSpecification: TrafficSpecification{
				Interval: Interval{1, 1000}, MaxFramesPerInterval: 2, MaxFrameSize: 92, TimeAware: &TimeAware{EarliestTransmitOffset: 1, LatestTransmitOffset: 2},
			},
			UserToNetworkRequirements: &UserToNetworkRequirements{MaxLatency: 500_000},
		},
		Status: StreamStatus{
			StatusInfo: StatusInfo{TalkerStatus: TalkerFailed, FailureCode: 3},
			Nodes: []StreamNode{{
				Name: "a", Pods: []string{"p"}, PodCount: 1, AppliedSince: since,
				Counters: &StreamCounters{Frames: 1 << 50, Lost: map[string]int64{"missed": 1}, Refused: map[string]int64{"not_allowed": 2}},
			}},
		},
	}
	object, err := want.ToUnstructured()
	if err != nil {
		t.Fatal(err)
	}
	got, err := StreamFrom(object)
	if err != nil || !got.Status.Nodes[0].AppliedSince.Equal(&since) {
		t.Fatalf("%+v, %v", got, err)
	}
	got.Status.Nodes[0].AppliedSince = since
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	copied := got.Status.DeepCopy()
	copied.Nodes[0].Pods[0], copied.Nodes[0].Counters.Lost["missed"] = "changed", 9
	if got.Status.Nodes[0].Pods[0] != "p" || got.Status.Nodes[0].Counters.Lost["missed"] != 1 {
		t.Error("a copy shares memory")
	}
	if _, err := StreamFrom("nonsense"); err == nil {
		t.Error("read")
	}
}

func TestIntervals(t *testing.T) {
	for interval, want := range map[Interval]int64{
		{1, 1000}: 1_000_000, {1, 3}: 0, {3, 3}: 1_000_000_000, {10, 1}: 10_000_000_000, {1, 1_000_000_000}: 1, {0, 1}: 0, {1, 0}: 0, {-1, 1}: 0,
		{1 << 33, 1}: 0, {4_294_967_295, 4_294_967_295}: 1_000_000_000,
	} {
		if got := interval.Nanoseconds(); got != want {
			t.Errorf("%+v: %d, expected %d", interval, got, want)
		}
	}
}

func TestTheOrderOfStreams(t *testing.T) {
	one := func(name string, rank *StreamRank, age int64) *Stream {
		return &Stream{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(age, 0))}, Spec: StreamSpec{StreamRank: rank}}
	}
	order := []*Stream{one("z", &StreamRank{0}, 9), one("b", nil, 1), one("a", &StreamRank{1}, 2), one("c", nil, 2)}
	for index := range order[1:] {
		if CompareStreams(order[index], order[index+1]) >= 0 || CompareStreams(order[index+1], order[index]) <= 0 {
			t.Errorf("%s and %s", order[index].Name, order[index+1].Name)
		}
	}
	if (Talker{}).Selects(map[string]string{"a": "b"}) {
		t.Error("no selector selects nobody")
	}
}
