// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

const (
	taiOffset = 37 * int64(time.Second)
	cycle     = int64(time.Millisecond)
)

// gates is a ktsnd with one port, eth0: what it has, and how it behaves.
type gates struct {
	nodeapi.NodeClient
	world  *world
	state  *nodeapi.ScheduleState
	refuse string
	away   bool
	offset int64
}

func (g *gates) answer() *nodeapi.ScheduleState {
	g.state.CurrentTime = uint64(g.world.now.UnixNano() + g.offset)
	return &nodeapi.ScheduleState{
		Port: "eth0", Name: g.state.Name, Admin: g.state.Admin, IsOpen: g.state.IsOpen,
		ConfigChangeTime: g.state.ConfigChangeTime, CurrentTime: g.state.CurrentTime,
	}
}

func (g *gates) GetSchedule(context.Context, *nodeapi.GetScheduleRequest, ...grpc.CallOption) (*nodeapi.GetScheduleReply, error) {
	if g.away {
		return nil, &nodeapi.Error{Code: codes.Unavailable, Text: "ktsnd is not running"}
	}
	return &nodeapi.GetScheduleReply{Ports: []*nodeapi.ScheduleState{g.answer()}}, nil
}

// ApplySchedule does 802.1Q-2022 8.6.9.3: a base time ahead is the ConfigChangeTime, else the next cycle of its grid.
func (g *gates) ApplySchedule(_ context.Context, request *nodeapi.ApplyScheduleRequest, _ ...grpc.CallOption) (*nodeapi.ApplyScheduleReply, error) {
	switch {
	case g.away:
		return nil, &nodeapi.Error{Code: codes.Unavailable, Text: "ktsnd is not running"}
	case request.Port != "eth0":
		return nil, &nodeapi.Error{Code: codes.NotFound, Text: "no such port; ktsnd has: eth0"}
	case g.refuse != "" && request.Admin != nil:
		return nil, &nodeapi.Error{Code: codes.InvalidArgument, Text: g.refuse}
	case request.CheckOnly:
	case request.Admin == nil:
		g.state.Name, g.state.Admin, g.state.ConfigChangeTime = "", nil, 0
	default:
		now := uint64(g.world.now.UnixNano() + g.offset)
		at := request.Admin.BaseTime
		if at < now {
			at += (now - at + request.Admin.CycleTime - 1) / request.Admin.CycleTime * request.Admin.CycleTime
		}
		g.state.Name, g.state.Admin, g.state.ConfigChangeTime = request.Name, request.Admin, at
	}
	return &nodeapi.ApplyScheduleReply{State: g.answer()}, nil
}

// world is a cluster in steps of 100 ms: objects, nodes, and agents that may be unreachable.
type world struct {
	t         *testing.T
	now       time.Time
	config    rollout.Config
	schedules []*v1alpha1.GateSchedule
	daemons   map[string]*gates
	answers   map[string]rollout.Answers
	cut       map[string]bool // the node does not see the API server
	seen      []string        // phases of the first schedule, in order
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{
		t: t, now: time.Unix(1_800_000_000, 123_456_789), config: rollout.Defaults, daemons: map[string]*gates{},
		answers: map[string]rollout.Answers{}, cut: map[string]bool{},
	}
	for _, name := range nodes {
		w.join(name)
	}
	w.create("line")
	return w
}

func (w *world) join(name string) {
	w.daemons[name] = &gates{world: w, state: &nodeapi.ScheduleState{IsOpen: true}, offset: taiOffset}
	w.answers[name] = rollout.Answers{}
}

func (w *world) create(name string) *v1alpha1.GateSchedule {
	schedule := &v1alpha1.GateSchedule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(w.now)},
		Spec: v1alpha1.GateScheduleSpec{GateParameterTable: v1alpha1.GateParameterTable{
			GateEnabled: true,
			AdminControlList: []v1alpha1.GateControlEntry{
				{GateStatesValue: 128, TimeIntervalValue: cycle / 4}, {GateStatesValue: 127, TimeIntervalValue: cycle - cycle/4},
			},
		}},
	}
	w.schedules = append(w.schedules, schedule)
	return schedule
}

func (w *world) edit() { w.schedules[0].Generation++ }

func (w *world) nodes() []rollout.Node {
	var nodes []rollout.Node
	for name := range w.daemons {
		nodes = append(nodes, rollout.Node{Name: name, Answers: w.answers[name]})
	}
	return nodes
}

// control is one look of a controller.
func (w *world) control() {
	for _, schedule := range w.schedules {
		schedule.Status = w.config.Next(schedule, w.schedules, w.nodes(), w.now)
	}
	if len(w.schedules) > 0 {
		if phase := w.schedules[0].Status.Phase; len(w.seen) == 0 || w.seen[len(w.seen)-1] != phase {
			w.seen = append(w.seen, phase)
		}
	}
}

// agents is one look of each agent that sees the API server.
func (w *world) agents() {
	for name, daemon := range w.daemons {
		if w.cut[name] {
			continue
		}
		s := &scheduler{name, daemon, slog.New(slog.DiscardHandler), func() time.Time { return w.now }}
		if answers, err := s.reconcile(context.Background(), w.schedules, "eth0", w.answers[name], w.nodes()); err == nil {
			w.answers[name] = answers
		}
	}
}

func (w *world) step() {
	w.control()
	w.agents()
	w.now = w.now.Add(100 * time.Millisecond)
}

func (w *world) run(span time.Duration) {
	for end := w.now.Add(span); w.now.Before(end); {
		w.step()
	}
}

// until steps until a phase is there.
func (w *world) until(phase string) {
	w.t.Helper()
	for range 4000 {
		if w.step(); w.schedules[0].Status.Phase == phase {
			return
		}
	}
	w.t.Fatalf("never %s: %+v", phase, w.schedules[0].Status)
}

// decided steps until a phase is written, and no agent has seen it yet.
func (w *world) decided(phase string) {
	w.t.Helper()
	for range 4000 {
		if w.control(); w.schedules[0].Status.Phase == phase {
			return
		}
		w.agents()
		w.now = w.now.Add(100 * time.Millisecond)
	}
	w.t.Fatalf("never %s: %+v", phase, w.schedules[0].Status)
}

// holds says what each node has: the generation, by the name that ktsnd knows.
func (w *world) holds() string {
	var texts []string
	for name, daemon := range w.daemons {
		generation := "-"
		if _, after, found := strings.Cut(daemon.state.Name, "@"); found {
			generation, _, _ = strings.Cut(after, ".")
		}
		texts = append(texts, name+":"+generation)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}

func (w *world) want(what, holds string) {
	w.t.Helper()
	if got := w.holds(); got != holds {
		w.t.Errorf("%s: %s, expected %s; %+v", what, got, holds, w.schedules[0].Status)
	}
}

func TestAllNodesGetItAtOneInstant(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.until(v1alpha1.PhaseApplied)
	w.want("applied", "a:1 b:1 c:1")
	at := w.schedules[0].Status.Accepted.ConfigChangeTime
	for name, daemon := range w.daemons {
		if int64(daemon.state.ConfigChangeTime) != at {
			t.Errorf("%s: %d, the others %d", name, daemon.state.ConfigChangeTime, at)
		}
	}
	if at%cycle != 0 || at < w.now.UnixNano()+taiOffset {
		t.Errorf("%d is not ahead on the schedule's grid", at)
	}
	if got := strings.Join(w.seen, " "); got != "Checking Committed Applied" {
		t.Errorf("phases: %s", got)
	}
	w.run(10 * time.Second)
	text := func() string {
		data, err := json.Marshal(w.schedules[0].Status)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	before := text()
	w.run(time.Minute)
	if after := text(); after != before || w.schedules[0].Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("nothing happens, but the status changes:\n%s\n%s", before, after)
	}
}

func TestOneRefusalKeepsItFromAll(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.until(v1alpha1.PhaseApplied)
	w.edit()
	w.daemons["b"].refuse = "admin.control_list: too long"
	w.until(v1alpha1.PhaseRejected)
	w.want("refused", "a:1 b:1 c:1")
	rejected := w.schedules[0].Status.Rejected
	if rejected.Reason != rollout.ReasonRefused || !strings.Contains(rejected.Message, "node b: admin.control_list: too long") {
		t.Errorf("%+v", rejected)
	}
	w.daemons["b"].refuse = ""
	w.until(v1alpha1.PhaseApplied) // later, by itself
	w.want("retried", "a:2 b:2 c:2")
}

func TestARefusalAfterTheCheckTakesItBackEverywhere(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.until(v1alpha1.PhaseApplied)
	w.edit()
	w.decided(v1alpha1.PhaseCommitted)
	w.daemons["c"].refuse = "state file: no space left"
	w.agents()
	w.want("on its way", "a:2 b:2 c:1")
	w.until(v1alpha1.PhaseRejected)
	w.daemons["c"].refuse = ""
	w.run(time.Second)
	w.want("taken back", "a:1 b:1 c:1")
}

func TestAnUnreachableNodeKeepsItFromAll(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.cut["b"] = true
	w.until(v1alpha1.PhaseRejected)
	w.want("never asked", "a:- b:-")
	if rejected := w.schedules[0].Status.Rejected; rejected.Reason != rollout.ReasonSilent || !strings.Contains(rejected.Message, "node b") {
		t.Errorf("%+v", rejected)
	}
	w.cut["b"] = false
	w.until(v1alpha1.PhaseApplied)
	w.want("back", "a:1 b:1")
	// It goes away between the check and the change: taken back before the instant.
	w.edit()
	w.decided(v1alpha1.PhaseCommitted)
	at := w.schedules[0].Status.Candidate.ConfigChangeTime
	w.cut["b"] = true
	w.until(v1alpha1.PhaseRejected)
	w.agents()
	if now := w.now.UnixNano() + taiOffset; now >= at {
		t.Errorf("taken back at %d, after the instant %d", now, at)
	}
	w.want("taken back in time", "a:1 b:1")
}

func TestANodeThatJoinsLaterGetsWhatIsAccepted(t *testing.T) {
	w := newWorld(t, "a")
	w.until(v1alpha1.PhaseApplied)
	w.run(10 * time.Second)
	w.join("b")
	w.run(time.Second)
	w.want("joined", "a:1 b:1")
	a, b := w.daemons["a"].state, w.daemons["b"].state
	if b.ConfigChangeTime <= a.ConfigChangeTime || (b.ConfigChangeTime-a.ConfigChangeTime)%uint64(cycle) != 0 {
		t.Errorf("not in phase: %d and %d", a.ConfigChangeTime, b.ConfigChangeTime)
	}
	if status := w.schedules[0].Status; len(status.Accepted.Nodes) != 2 || status.Attempts != 1 {
		t.Errorf("%+v", status)
	}
	// A node that cannot have it reports that, and disturbs no other.
	w.join("c")
	w.daemons["c"].refuse = "link-speed: made for another"
	w.run(time.Second)
	w.want("c refuses", "a:1 b:1 c:-")
	found := slices.ContainsFunc(w.schedules[0].Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == "InSync" && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "node c: Refused link-speed")
	})
	if !found {
		t.Errorf("%+v", w.schedules[0].Status.Conditions)
	}
	delete(w.daemons, "c")
	w.run(time.Second)
	if nodes := w.schedules[0].Status.Accepted.Nodes; len(nodes) != 2 {
		t.Errorf("a node that is gone counts: %v", nodes)
	}
}

func TestANodeThatLostEverythingGetsItAgain(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.until(v1alpha1.PhaseApplied)
	w.daemons["b"].state, w.answers["b"] = &nodeapi.ScheduleState{IsOpen: true}, rollout.Answers{}
	w.run(time.Second)
	w.want("restarted", "a:1 b:1")
}

// The controller dies after each of its writes in turn, stays away for a while, and another one goes on.
func TestAControllerMayDieAnywhere(t *testing.T) {
	for _, phase := range []string{v1alpha1.PhaseChecking, v1alpha1.PhaseCommitted, v1alpha1.PhaseApplied} {
		for _, away := range []time.Duration{200 * time.Millisecond, 10 * time.Second} {
			w := newWorld(t, "a", "b")
			w.until(v1alpha1.PhaseApplied)
			w.run(5 * time.Second)
			w.edit()
			w.until(phase)
			for end := w.now.Add(away); w.now.Before(end); w.now = w.now.Add(100 * time.Millisecond) {
				w.agents() // there is no controller to decide
			}
			w.until(v1alpha1.PhaseApplied)
			w.run(time.Second)
			w.want(fmt.Sprintf("died in %s for %s", phase, away), "a:2 b:2")
		}
	}
}

// The leader dies right after its decision, and one agent is stopped: the others give it up by themselves, before the instant.
func TestWithoutAControllerNobodyKeepsWhatNotAllHave(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.until(v1alpha1.PhaseApplied)
	w.run(5 * time.Second)
	w.edit()
	w.decided(v1alpha1.PhaseCommitted)
	at := w.schedules[0].Status.Candidate.ConfigChangeTime
	w.cut["c"] = true
	w.agents()
	w.want("on its way", "a:2 b:2 c:1")
	for w.now.UnixNano()+taiOffset < at-int64(200*time.Millisecond) {
		w.agents()
		w.now = w.now.Add(100 * time.Millisecond)
	}
	w.want("given up in time", "a:1 b:1 c:1")
	w.run(time.Second) // another controller
	if rejected := w.schedules[0].Status.Rejected; rejected == nil || rejected.Reason != rollout.ReasonMissed {
		t.Errorf("%+v", w.schedules[0].Status)
	}
	w.cut["c"] = false
	w.until(v1alpha1.PhaseApplied)
	w.want("tried again", "a:2 b:2 c:2")
}

// Two decide on the same state: the second write is refused by the object's version, so only what one of them wrote is there.
// Whichever it is, and however late, the end is the same.
func TestTwoControllersComeToOneEnd(t *testing.T) {
	w := newWorld(t, "a", "b")
	var stale v1alpha1.GateScheduleStatus
	for step := range 200 {
		first := w.config.Next(w.schedules[0], w.schedules, w.nodes(), w.now)
		second := w.config.Next(w.schedules[0], w.schedules, w.nodes(), w.now.Add(30*time.Millisecond))
		w.schedules[0].Status = []v1alpha1.GateScheduleStatus{first, second}[step%2]
		stale = first
		w.agents()
		w.now = w.now.Add(100 * time.Millisecond)
	}
	if stale.Phase != v1alpha1.PhaseApplied {
		t.Errorf("%+v", stale)
	}
	w.want("two", "a:1 b:1")
}

func TestAnEditOnTheWayBeginsAgain(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.cut["b"] = true
	w.until(v1alpha1.PhaseChecking)
	w.edit()
	w.cut["b"] = false
	w.until(v1alpha1.PhaseApplied)
	w.want("edited while checking", "a:2 b:2")
	w.edit()
	w.until(v1alpha1.PhaseCommitted)
	w.edit() // what is committed comes to its end first
	w.run(20 * time.Second)
	w.want("edited while committed", "a:4 b:4")
}

func TestWhatIsDeletedIsForgotten(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.until(v1alpha1.PhaseApplied)
	w.daemons["b"].state.Name = "by hand"
	schedules := w.schedules
	w.schedules = nil
	w.agents()
	if w.daemons["a"].state.Name != "" || w.daemons["b"].state.Name != "by hand" {
		t.Errorf("left %q, %q: only ours is taken back", w.daemons["a"].state.Name, w.daemons["b"].state.Name)
	}
	// Made again with the same name it is another object: old answers do not count.
	w.schedules = schedules
	w.schedules[0].UID, w.schedules[0].Status = "another", v1alpha1.GateScheduleStatus{}
	w.cut["b"] = true
	w.run(2 * time.Second)
	w.want("made anew", "a:- b:-")
}

func TestTheOlderOfTwoForOnePortWins(t *testing.T) {
	w := newWorld(t, "a")
	w.now = w.now.Add(time.Second)
	younger := w.create("younger")
	w.until(v1alpha1.PhaseApplied)
	w.run(2 * time.Second)
	if younger.Status.Phase != v1alpha1.PhaseRejected || younger.Status.Rejected.Reason != rollout.ReasonConflict ||
		!strings.Contains(younger.Status.Message, "GateSchedule line is older") {
		t.Errorf("%+v", younger.Status)
	}
	// The same port under its own name: the agent sees it.
	younger.Spec.Uplink, younger.Generation = "eth0", 2
	w.run(2 * time.Second)
	if younger.Status.Rejected == nil || !strings.Contains(younger.Status.Rejected.Message, "port eth0 has GateSchedule line, which is older") {
		t.Errorf("%+v", younger.Status)
	}
	if !strings.Contains(w.daemons["a"].state.Name, "line@1") {
		t.Errorf("%s", w.daemons["a"].state.Name)
	}
	w.schedules = w.schedules[1:]
	w.until(v1alpha1.PhaseApplied)
	if !strings.Contains(w.daemons["a"].state.Name, "younger@2") {
		t.Errorf("%s", w.daemons["a"].state.Name)
	}
}

func TestClocksThatDifferAreRefused(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.daemons["b"].offset = 0 // its kernel does not have the TAI offset
	w.until(v1alpha1.PhaseRejected)
	if rejected := w.schedules[0].Status.Rejected; rejected.Reason != rollout.ReasonClock || !strings.Contains(rejected.Message, "37s") {
		t.Errorf("%+v", rejected)
	}
	w.want("clocks", "a:- b:-")
}

func TestABaseTimeAheadIsTheInstant(t *testing.T) {
	w := newWorld(t, "a")
	base := w.now.Add(time.Minute).UnixNano() + taiOffset + 77
	w.schedules[0].Spec.GateParameterTable.AdminBaseTime = base
	w.until(v1alpha1.PhaseApplied)
	if got := w.schedules[0].Status.Accepted.ConfigChangeTime; got != base {
		t.Errorf("%d, asked for %d", got, base)
	}
}

func TestNoNodeAndUnknownPort(t *testing.T) {
	w := newWorld(t, "a")
	w.schedules[0].Spec.NodeSelector = map[string]string{"tsn": "yes"}
	w.until(v1alpha1.PhaseRejected)
	if w.schedules[0].Status.Rejected.Reason != rollout.ReasonNoNode {
		t.Errorf("%+v", w.schedules[0].Status)
	}
	w.schedules[0].Spec = v1alpha1.GateScheduleSpec{Uplink: "eth7", GateParameterTable: w.schedules[0].Spec.GateParameterTable}
	w.edit()
	w.run(2 * time.Second)
	if rejected := w.schedules[0].Status.Rejected; rejected.Reason != rollout.ReasonRefused || !strings.Contains(rejected.Message, "no such port") {
		t.Errorf("%+v", rejected)
	}
}
