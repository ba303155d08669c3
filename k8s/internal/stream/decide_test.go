// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

var epoch = time.Unix(1_800_000_000, 0)

// cluster has two nodes, a and b, with a talker each and a listener on b.
func cluster() *World {
	node := func(name, prefix string) Node {
		return Node{
			Name: name, Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}, Answers: rollout.Answers{},
			Report: Report{
				Ports: map[string]PortReport{"eth0": {LinkSpeed: 1_000_000_000}},
				Talkers: []TalkerReport{{Namespace: "plant", Pod: "talker-" + name, Interface: "net1", Port: "eth0", Overhead: 50, MTU: 1450, Classes: 255,
					StreamCounters: v1alpha1.StreamCounters{Frames: 100, Octets: 9200, Late: 1, ErrorP50: 900, ErrorP99: 4000, Lost: map[string]int64{"missed": 2}}}},
			},
		}
	}
	w := &World{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}, HandOver: 10_000}
	w.Nodes = []Node{node("a", "10.99.0.0/24"), node("b", "10.99.1.0/24")}
	for _, name := range []string{"a", "b"} {
		w.Pods = append(w.Pods, Pod{"plant", "talker-" + name, name, "", map[string]string{"app": "talker", "on": name}})
	}
	return w
}

func (w *World) stream(name string, change func(*v1alpha1.StreamSpec)) *v1alpha1.Stream {
	age := time.Duration(len(w.Streams)) * time.Second
	one := &v1alpha1.Stream{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "plant", Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(epoch.Add(age)),
		},
		Spec: v1alpha1.StreamSpec{
			Talker: v1alpha1.Talker{PodSelector: map[string]string{"on": "a"}}, Priority: 6,
			DataFrameSpecification: v1alpha1.DataFrameSpecification{DestinationIPAddress: "10.99.1.2", DestinationPort: int32(5000 + len(w.Streams))},
			TrafficSpecification: v1alpha1.TrafficSpecification{
				Interval: v1alpha1.Interval{Numerator: 1, Denominator: 1000}, MaxFramesPerInterval: 1, MaxFrameSize: 92,
			},
		},
	}
	if change != nil {
		change(&one.Spec)
	}
	w.Streams = append(w.Streams, one)
	return one
}

// schedule opens class 6 for the first `window` ns of each millisecond, on the nodes named; they have it.
func (w *World) schedule(window int64, nodes ...string) *v1alpha1.GateSchedule {
	one := &v1alpha1.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line", UID: "line", CreationTimestamp: metav1.NewTime(epoch)}}
	one.Status.Accepted = &v1alpha1.Rollout{Generation: 3, Attempt: 4, Nodes: nodes, Spec: v1alpha1.GateScheduleSpec{
		GateParameterTable: v1alpha1.GateParameterTable{GateEnabled: true, AdminControlList: []v1alpha1.GateControlEntry{
			{GateStatesValue: 64, TimeIntervalValue: window}, {GateStatesValue: 191, TimeIntervalValue: 1_000_000 - window},
		}},
	}}
	for index := range w.Nodes {
		for _, name := range nodes {
			if w.Nodes[index].Name == name {
				w.Nodes[index].Answers["line"] = rollout.Answer{
					UID: "line", Generation: 3, Attempt: 4, State: rollout.StateApplied, Port: "eth0", ConfigChangeTime: 1_800_000_037_000_000_000,
				}
			}
		}
	}
	w.Schedules = append(w.Schedules, one)
	return one
}

func (w *World) decide() map[string]v1alpha1.StreamStatus {
	found := map[string]v1alpha1.StreamStatus{}
	decided := w.Decide(epoch)
	for _, one := range w.Streams {
		found[one.Name] = decided[one.UID]
	}
	return found
}

func TestWithoutAScheduleItSaysSo(t *testing.T) {
	w := cluster()
	w.stream("s", nil)
	got := w.decide()["s"]
	node := got.Nodes[0]
	if got.StatusInfo.TalkerStatus != "ready" || got.NodesAccepted != "1/1" || got.NodesApplied != "1/1" || len(got.Nodes) != 1 || node.Name != "a" ||
		!strings.HasPrefix(node.Message, "no GateSchedule: by the link speed of eth0 alone, 1000000000 bit/s") || node.TrafficClass != 6 {
		t.Errorf("%+v", got)
	}
	if got.Frames != 100 || got.Late != 1 || node.Counters.Lost["missed"] != 2 || node.Counters.ErrorP99 != 4000 {
		t.Errorf("counters: %+v", node.Counters)
	}
	w.Nodes[0].Report.Ports["eth0"] = PortReport{LinkSpeed: 1e9, Schedule: "mine"}
	if text := w.decide()["s"].Nodes[0].Message; !strings.Contains(text, `its schedule "mine" is ktsnd's own`) {
		t.Errorf("%s", text)
	}
}

func TestAScheduleIsWhatCountsAndIsNamed(t *testing.T) {
	w := cluster()
	w.stream("s", func(s *v1alpha1.StreamSpec) { s.Talker.PodSelector = map[string]string{"app": "talker"} })
	w.Streams[0].Spec.DataFrameSpecification.DestinationIPAddress = "192.0.2.7" // outside: by the port of either
	w.schedule(50_000, "a", "b")
	got := w.decide()["s"]
	if len(got.Nodes) != 2 || got.NodesApplied != "2/2" || got.Frames != 200 {
		t.Fatalf("%+v", got)
	}
	for _, node := range got.Nodes {
		if node.GateSchedule != "line" || node.GateScheduleGeneration != 3 || node.ConfigChangeTime != 1_800_000_037_000_000_000 || !node.Applied {
			t.Errorf("%+v", node)
		}
	}
	w.Nodes[0].Report.Ports["eth0"] = PortReport{LinkSpeed: 1e9, HandOver: 16_000}
	if text := w.decide()["s"].Nodes[0].Message; !strings.Contains(text, "needs up to 16000 ns for a hand-over, and --hand-over of ktsn-controller is 10000") {
		t.Errorf("%s", text)
	}
	if got.AccumulatedLatency < 950_000 || got.AccumulatedLatency > 1_000_000 {
		t.Errorf("latency %d", got.AccumulatedLatency)
	}
	// A node that has lost it: accepted, not applied, since then.
	w.Nodes[1].Answers["line"] = rollout.Answer{UID: "line", Generation: 3, Attempt: 4, State: rollout.StateFailed, Message: "ktsnd is not running", Port: "eth0"}
	w.Streams[0].Status = got
	later := w.Decide(epoch.Add(time.Hour))[w.Streams[0].UID]
	a, b := later.Nodes[0], later.Nodes[1]
	if later.NodesAccepted != "2/2" || later.NodesApplied != "1/2" || b.Applied || !b.AppliedSince.Time.Equal(epoch.Add(time.Hour)) ||
		!a.AppliedSince.Time.Equal(epoch) || !strings.Contains(b.Message, "Failed ktsnd is not running") {
		t.Errorf("%+v", later)
	}
}

// What a node answers about a later rollout takes nothing from what holds: agents keep it until the later one's instant, and where
// that one fails.
func TestALaterRolloutTakesNothingAway(t *testing.T) {
	for name, c := range map[string]struct {
		answer rollout.Answer
		want   string
	}{
		"checked": {rollout.Answer{Attempt: 5, State: rollout.StateReady}, "1/1"}, "refused": {rollout.Answer{Attempt: 5, State: rollout.StateRefused}, "1/1"},
		"to come": {rollout.Answer{Attempt: 5, State: rollout.StateApplied}, "1/1"}, "missed": {rollout.Answer{Attempt: 5, State: rollout.StateMissed}, "1/1"},
		"ktsnd away": {rollout.Answer{Attempt: 5, State: rollout.StateFailed}, "0/1"}, "an old one": {rollout.Answer{Attempt: 3, State: rollout.StateApplied}, "0/1"},
		"another GateSchedule of the name": {rollout.Answer{UID: "other", Attempt: 5, State: rollout.StateApplied}, "0/1"},
	} {
		w := cluster()
		one := w.schedule(50_000, "a")
		one.Status.Accepted.Spec.Uplink, one.Status.Accepted.ConfigChangeTime = "eth0", 17
		one.Status.Candidate = &v1alpha1.Rollout{Generation: 4, Attempt: 5, Nodes: []string{"a"}}
		if c.answer.Generation, c.answer.Port = 4, "eth0"; c.answer.UID == "" {
			c.answer.UID = "line"
		}
		w.Nodes[0].Answers["line"] = c.answer
		w.stream("s", nil)
		got := w.decide()["s"]
		if got.NodesAccepted != "1/1" || got.NodesApplied != c.want || got.Nodes[0].GateScheduleGeneration != 3 ||
			(got.Nodes[0].ConfigChangeTime == 17) != (c.want == "1/1") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A node that has not said which port a GateSchedule is on may have it on this one.
func TestAnUnknownPortIsWaitedFor(t *testing.T) {
	w := cluster()
	w.schedule(100, "a")
	delete(w.Nodes[0].Answers, "line")
	w.stream("s", nil)
	if got := w.decide()["s"]; got.NodesAccepted != "0/1" || !strings.Contains(got.Message, "not said which port GateSchedule line is on") {
		t.Errorf("%+v", got)
	}
	w.Schedules[0].Status.Accepted.Spec.Uplink = "eth7"
	if got := w.decide()["s"]; got.NodesApplied != "1/1" || got.Nodes[0].GateSchedule != "" {
		t.Errorf("another port: %+v", got)
	}
}

// What a node writes into its annotation comes into the status cut and harmless.
func TestAnswersOfNodesAreCut(t *testing.T) {
	w := cluster()
	w.schedule(50_000, "a")
	w.stream("s", nil)
	long := strings.Repeat("<\\u001b[2J", 2000)
	for _, field := range []string{`"state":"` + long + `"`, `"state":"Refused","message":"` + long + `"`} {
		w.Nodes[0].Answers = rollout.ParseAnswers(`{"line":{"uid":"line","generation":3,"attempt":4,"port":"eth0",` + field + `}}`)
		got := w.decide()["s"]
		text, err := json.Marshal(got)
		if err != nil || len(text) > 20_000 || strings.ContainsRune(got.Message, 27) || got.NodesApplied != "0/1" || len(w.Nodes[0].Answers) != 1 {
			t.Errorf("%d octets, %v: %.200s", len(text), err, got.Message)
		}
	}
}

func TestOrderIsRankThenAge(t *testing.T) {
	w := cluster()
	room := 10_000 + 2*WireTime(WireOctets(92, 50), 1e9)
	w.schedule(room, "a")
	for _, name := range []string{"first", "second", "third"} {
		w.stream(name, nil)
	}
	got := w.decide()
	if got["first"].NodesAccepted != "1/1" || got["second"].NodesAccepted != "1/1" || got["third"].StatusInfo.FailureCode != CodeClassBandwidth {
		t.Errorf("%+v", got)
	}
	w.stream("emergency", func(s *v1alpha1.StreamSpec) { s.StreamRank = &v1alpha1.StreamRank{} })
	got = w.decide()
	if got["emergency"].NodesAccepted != "1/1" || got["first"].NodesAccepted != "1/1" ||
		got["second"].StatusInfo.FailureCode != CodePreempted || got["third"].StatusInfo.FailureCode != CodeClassBandwidth {
		t.Errorf("%+v", got)
	}
	// The order of the lists says nothing.
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		r.Shuffle(len(w.Streams), func(a, b int) { w.Streams[a], w.Streams[b] = w.Streams[b], w.Streams[a] })
		r.Shuffle(len(w.Pods), func(a, b int) { w.Pods[a], w.Pods[b] = w.Pods[b], w.Pods[a] })
		if again := w.decide(); !reflect.DeepEqual(again, got) {
			t.Fatalf("%+v\n%+v", again, got)
		}
	}
}

func TestRefusedAnywhereTakesNoRoomElsewhere(t *testing.T) {
	w := cluster()
	room := 10_000 + WireTime(WireOctets(92, 50), 1e9)
	w.schedule(room, "a", "b")
	w.Streams = nil
	outside := func(s *v1alpha1.StreamSpec) { s.DataFrameSpecification.DestinationIPAddress = "192.0.2.7" }
	w.stream("on b", func(s *v1alpha1.StreamSpec) { outside(s); s.Talker.PodSelector = map[string]string{"on": "b"} })
	w.stream("both", func(s *v1alpha1.StreamSpec) { outside(s); s.Talker.PodSelector = map[string]string{"app": "talker"} })
	w.stream("on a", outside)
	got := w.decide()
	if got["both"].Nodes[0].Reason != "RefusedElsewhere" || got["both"].Nodes[1].FailureCode != CodeClassBandwidth || got["on a"].NodesAccepted != "1/1" {
		t.Errorf("%+v", got)
	}
}

func TestEachPodOfANodeSendsAllOfIt(t *testing.T) {
	w := cluster()
	w.schedule(10_000+2*WireTime(WireOctets(92, 50), 1e9)-1, "a")
	w.Pods = append(w.Pods, Pod{"plant", "twin", "a", "", map[string]string{"on": "a"}})
	twin := w.Nodes[0].Report.Talkers[0]
	twin.Pod = "twin"
	w.Nodes[0].Report.Talkers = append(w.Nodes[0].Report.Talkers, twin)
	w.stream("s", nil)
	if got := w.decide()["s"]; got.StatusInfo.FailureCode != CodeClassBandwidth || got.Nodes[0].PodCount != 2 {
		t.Errorf("%+v", got)
	}
}

func spec(change func(*v1alpha1.StreamSpec)) func(*World) {
	return func(w *World) { change(&w.Streams[0].Spec) }
}

func talker(change func(*TalkerReport)) func(*World) {
	return func(w *World) { change(&w.Nodes[0].Report.Talkers[0]) }
}

// wrongs are all ways to be refused, or to wait, with what is said.
var wrongs = map[string]struct {
	change         func(*World)
	status, reason string
	code           int32
	text           string
}{
	"no pods":                   {func(w *World) { w.Pods = nil }, "none", "NoTalker", 0, "no running pod of this namespace has the labels"},
	"pods of another namespace": {func(w *World) { w.Pods[0].Namespace = "other" }, "none", "NoTalker", 0, "no running pod"},
	"no report":                 {func(w *World) { w.Nodes[0].Report = Report{} }, "none", "NotKnownYet", 0, "node a: ktsnd has no interface of pod talker-a"},
	"another interface":         {spec(func(s *v1alpha1.StreamSpec) { s.Talker.InterfaceName = "net2" }), "none", "NotKnownYet", 0, "no interface net2 of pod talker-a"},
	"too many talkers":          {func(w *World) { w.Nodes[0].Report.Talkers, w.Nodes[0].Report.Left = nil, 7 }, "none", "NotKnownYet", 0, "7 more talkers"},
	"link speed":                {func(w *World) { w.Nodes[0].Report.Ports = nil }, "none", "NotKnownYet", 0, `link speed of port "eth0" is not known`},
	"two interfaces": {func(w *World) {
		second := w.Nodes[0].Report.Talkers[0]
		second.Interface = "net2"
		w.Nodes[0].Report.Talkers = append(w.Nodes[0].Report.Talkers, second)
	}, "failed", "SeveralInterfaces", 0, "talker.interface-name: missing, but pod talker-a has several: net1, net2"},
	"two ports": {func(w *World) {
		second := w.Nodes[0].Report.Talkers[0]
		second.Pod, second.Port = "twin", "eth1"
		w.Nodes[0].Report.Talkers = append(w.Nodes[0].Report.Talkers, second)
		w.Pods = append(w.Pods, Pod{"plant", "twin", "a", "", map[string]string{"on": "a"}})
	}, "failed", "SeveralPorts", 0, "leave by different ports"},
	"no node has the destination": {spec(func(s *v1alpha1.StreamSpec) { s.DataFrameSpecification.DestinationIPAddress = "10.99.9.1" }),
		"failed", "NoRoute", 0, "found 10.99.9.1, but no Node's prefixes"},
	"not an address":             {spec(func(s *v1alpha1.StreamSpec) { s.DataFrameSpecification.DestinationIPAddress = "x" }), "failed", "Invalid", 0, `found "x"`},
	"an interval of no whole ns": {spec(func(s *v1alpha1.StreamSpec) { s.TrafficSpecification.Interval.Denominator = 1024 }), "failed", "Invalid", 0, "interval: found 1/1024 s"},
	"larger than the MTU":        {spec(func(s *v1alpha1.StreamSpec) { s.TrafficSpecification.MaxFrameSize = 1451 }), "failed", "MaxFrameSize", 14, "found 1451, but the interface's MTU is 1450"},
	"queueMaxSDU": {func(w *World) {
		w.schedule(100_000, "a").Status.Accepted.Spec.GateParameterTable.QueueMaxSduTable = []v1alpha1.QueueMaxSdu{{TrafficClass: 6, QueueMaxSdu: 141}}
	}, "failed", "MaxFrameSize", 14, "found 92, with the overlay 142, but queue-max-sdu of traffic class 6 is 141"},
	"class": {talker(func(r *TalkerReport) { r.Classes = 1 }), "failed", "ClassNotAllowed", 0, "priority: found 6, which is traffic class 6"},
	"the class by the schedule's map": {func(w *World) {
		w.schedule(100_000, "a").Status.Accepted.Spec.PriorityMap = make([]int32, 16)
		w.Nodes[0].Report.Talkers[0].Classes = 64
	}, "failed", "ClassNotAllowed", 0, "which is traffic class 0"},
	"no window": {func(w *World) {
		w.schedule(100_000, "a").Status.Accepted.Spec.GateParameterTable.AdminControlList[0].GateStatesValue = 0
	}, "failed", "Window", 3, "the gate of traffic class 6 never opens"},
	"short window": {func(w *World) { w.schedule(11_000, "a") }, "failed", "Window", 3, "hold 0 ns of frames each cycle of 1000000 ns (open 0 to 11000"},
	"offsets": {func(w *World) {
		w.schedule(100_000, "a")
		w.Streams[0].Spec.TrafficSpecification.TimeAware = &v1alpha1.TimeAware{EarliestTransmitOffset: 50_000, LatestTransmitOffset: 95_000}
	}, "failed", "Window", 3, "has to be open from 50000 to 106440 ns of each interval"},
	"an interval that drifts": {func(w *World) {
		w.schedule(100_000, "a")
		w.Streams[0].Spec.TrafficSpecification.Interval.Denominator = 1250
		w.Streams[0].Spec.TrafficSpecification.TimeAware = &v1alpha1.TimeAware{}
	}, "failed", "Window", 3, "in which an interval begins at"},
	"latency": {func(w *World) {
		w.schedule(100_000, "a")
		w.Streams[0].Spec.UserToNetworkRequirements = &v1alpha1.UserToNetworkRequirements{MaxLatency: 900_000}
	}, "failed", "MaxLatency", 21, "max-latency: found 900000 ns, but a frame takes up to"},
	"link": {spec(func(s *v1alpha1.StreamSpec) { s.TrafficSpecification.MaxFramesPerInterval = 1000 }), "failed", "LinkSpeed", 1, "would take 144.0 % of its 1000000000 bit/s"},
	"the same twice": {func(w *World) {
		w.stream("again", nil).Spec.DataFrameSpecification = w.Streams[0].Spec.DataFrameSpecification
		w.Streams[0], w.Streams[1] = w.Streams[1], w.Streams[0]
	}, "failed", "DestinationInUse", 5, "Stream s is for the same pod talker-a and destination 10.99.1.2 port 5000 already"},
	"the same in other letters": {func(w *World) {
		w.stream("again", nil).Spec.DataFrameSpecification = v1alpha1.DataFrameSpecification{DestinationIPAddress: "::ffff:10.99.1.2", DestinationPort: 5000}
		w.Streams[0], w.Streams[1] = w.Streams[1], w.Streams[0]
	}, "failed", "DestinationInUse", 5, "Stream s is for the same pod talker-a and destination"},
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	for name, c := range wrongs {
		w := cluster()
		w.stream("s", nil)
		c.change(w)
		got := w.Decide(epoch)[w.Streams[0].UID]
		condition := got.Conditions[0]
		if got.StatusInfo.TalkerStatus != c.status || condition.Reason != c.reason || got.StatusInfo.FailureCode != c.code || !strings.Contains(got.Message, c.text) ||
			got.NodesApplied != fmt.Sprintf("0/%d", len(got.Nodes)) {
			t.Errorf("%s: %+v %s %s", name, got.StatusInfo, condition.Reason, got.Message)
		}
	}
}

func TestAListenerOnTheSameNodePassesNoGate(t *testing.T) {
	w := cluster()
	w.schedule(1, "a")
	w.stream("s", func(s *v1alpha1.StreamSpec) { s.DataFrameSpecification.DestinationIPAddress = "10.99.0.9" })
	if got := w.decide()["s"]; got.NodesApplied != "1/1" || !strings.Contains(got.Nodes[0].Message, "passes no port") && !strings.Contains(got.Nodes[0].Message, "pass no port") {
		t.Errorf("%+v", got)
	}
}

// A node can say what it likes about pods of others: nothing comes of it.
func TestAHostileNodeDisturbsNobody(t *testing.T) {
	w := cluster()
	w.schedule(50_000, "a", "b")
	w.stream("s", nil)
	want := w.decide()
	for _, text := range []string{
		strings.Repeat("[", 1<<17), `{"talkers":[{"namespace":"plant","pod":"talker-a","interface":"net1","port":"eth0","classes":0,"frames":-5}]}`,
		`{"talkers":[{"namespace":"plant","pod":"talker-a","interface":"net9","port":"eth0","overhead":999999,"classes":255,"frames":9007199254740993}]}`,
		`{"ports":{"eth0":{"linkSpeed":1}},"left":-1}`, `{"talkers":"no"}`, "\x00",
	} {
		w.Nodes[1].Report = ParseReport(text)
		w.Nodes[1].Answers = rollout.ParseAnswers(`{"line":{"uid":"line","generation":3,"attempt":4,"state":"Refused","port":"eth0"}}`)
		if got := w.decide(); !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s: %+v", text, got)
		}
	}
}

func TestManyStreamsOfOnePortAreBounded(t *testing.T) {
	w := cluster()
	w.Memo = NewMemo()
	for index := range streamsMax + 1 {
		w.stream(fmt.Sprintf("s%03d", index), nil)
	}
	begin := time.Now()
	got := w.decide()
	if last := got[fmt.Sprintf("s%03d", streamsMax)]; last.StatusInfo.FailureCode != CodeResources {
		t.Errorf("%+v", last)
	}
	first := time.Since(begin)
	// The fastest of several: the machine may stand still in one of them.
	again := first
	for range 5 {
		begin = time.Now()
		w.decide()
		again = min(again, time.Since(begin))
	}
	if again > first/2 && again > 100*time.Millisecond {
		t.Errorf("nothing is remembered: %s, then %s", first, again)
	}
}

// A port full of streams of three classes with frames of several lengths, in a schedule of many windows; nothing remembered.
func BenchmarkDecide(b *testing.B) {
	for _, windows := range []int{1, 16, 128} {
		w := cluster()
		one := w.schedule(1, "a")
		table := &one.Status.Accepted.Spec.GateParameterTable
		table.AdminControlList = nil
		for range windows {
			for _, states := range []int32{16, 32, 64, 143} {
				table.AdminControlList = append(table.AdminControlList, v1alpha1.GateControlEntry{GateStatesValue: states, TimeIntervalValue: 250_000})
			}
		}
		for index := range streamsMax {
			w.stream(fmt.Sprint("s", index), func(s *v1alpha1.StreamSpec) {
				s.Priority, s.TrafficSpecification.MaxFrameSize = int32(4+index%3), int32(92+index%7)
			})
		}
		b.Run(fmt.Sprint(windows), func(b *testing.B) {
			for b.Loop() {
				w.Memo = nil
				w.Decide(epoch)
			}
		})
	}
}
