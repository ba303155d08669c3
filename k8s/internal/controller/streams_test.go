// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/stream"
)

func talkerPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{"much": "text"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func streamObject(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	one := &v1alpha1.Stream{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "plant", Name: name, UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: "7", CreationTimestamp: metav1.Now(),
		},
		Spec: v1alpha1.StreamSpec{
			Talker: v1alpha1.Talker{PodSelector: map[string]string{"app": "talker"}}, Priority: 6,
			DataFrameSpecification: v1alpha1.DataFrameSpecification{DestinationIPAddress: "10.99.1.2", DestinationPort: 5000},
			TrafficSpecification: v1alpha1.TrafficSpecification{
				Interval: v1alpha1.Interval{Numerator: 1, Denominator: 1000}, MaxFramesPerInterval: 1, MaxFrameSize: 92,
			},
		},
	}
	object, err := one.ToUnstructured()
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func reportOf(t *testing.T, frames int64) string {
	t.Helper()
	report := stream.Report{
		Ports: map[string]stream.PortReport{"eth0": {LinkSpeed: 1e9}},
		Talkers: []stream.TalkerReport{{Namespace: "plant", Pod: "talker", Interface: "net1", Port: "eth0", Overhead: 50, MTU: 1450, Classes: 255,
			StreamCounters: v1alpha1.StreamCounters{Frames: frames, Octets: 64 * frames}}},
	}
	text, err := report.Text()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// streams is a controller that leads, its informers synced, and its clock in the test's hand.
type streamBench struct {
	*bench
	t     *testing.T
	clock time.Time
}

func newStreamBench(t *testing.T, objects ...runtime.Object) *streamBench {
	t.Helper()
	objects = append(objects, talkerPod("talker", "a"),
		node("a", time.Hour, map[string]string{overlaynet.AnnotationPrefixes: "10.99.0.0/24", stream.Annotation: reportOf(t, 5)}),
		node("b", time.Hour, map[string]string{overlaynet.AnnotationPrefixes: "10.99.1.0/24"}))
	b := &streamBench{bench: newBench(t, objects...), t: t, clock: time.Unix(1_800_000_000, 0)}
	b.dynamic.PrependReactor("update", "streams", b.versioned)
	b.lead(b.Controller)
	return b
}

// versioned makes the API server refuse writes to old versions and count the others.
func (b *streamBench) versioned(action clienttesting.Action) (bool, runtime.Object, error) {
	object := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured)
	has, err := b.dynamic.Tracker().Get(v1alpha1.Streams, object.GetNamespace(), object.GetName())
	if err != nil {
		return true, nil, err
	}
	version := has.(*unstructured.Unstructured).GetResourceVersion()
	if object.GetResourceVersion() != version {
		return true, nil, apierrors.NewConflict(v1alpha1.Streams.GroupResource(), object.GetName(), errors.New("another was quicker"))
	}
	number, err := strconv.Atoi(version)
	object.SetResourceVersion(strconv.Itoa(number + 1))
	return err != nil, nil, err
}

func (b *streamBench) lead(c *Controller) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	if err := c.followStreams(ctx); err != nil {
		b.t.Fatal(err)
	}
	c.now = func() time.Time { return b.clock }
}

func (b *streamBench) look() {
	b.t.Helper()
	if err := b.Streams(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *streamBench) status(name string) v1alpha1.StreamStatus {
	b.t.Helper()
	return b.stream(name).Status
}

func (b *streamBench) stream(name string) *v1alpha1.Stream {
	b.t.Helper()
	object, err := b.dynamic.Resource(v1alpha1.Streams).Namespace("plant").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	one, err := v1alpha1.StreamFrom(object)
	if err != nil {
		b.t.Fatal(err)
	}
	return one
}

// seen waits until the informers have what was written.
func (b *streamBench) seen(name string) {
	b.t.Helper()
	eventually.Holds(b.t, "the status is seen", func() bool {
		object, has, _ := b.work.store.GetByKey("plant/" + name)
		if !has {
			return false
		}
		one, err := v1alpha1.StreamFrom(object)
		return err == nil && one.ResourceVersion == b.stream(name).ResourceVersion
	})
}

func (b *streamBench) report(node, text string) {
	b.t.Helper()
	found, err := b.kube.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	found = found.DeepCopy()
	found.Annotations[stream.Annotation] = text
	if _, err := b.kube.CoreV1().Nodes().Update(context.Background(), found, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	eventually.Holds(b.t, "the report is seen", func() bool {
		seen, err := b.nodes.Get(node)
		return err == nil && seen.Annotations[stream.Annotation] == text
	})
}

func (b *streamBench) writes() int {
	count := 0
	for _, action := range b.dynamic.Actions() {
		if action.GetVerb() == "update" && action.GetSubresource() == "status" && action.GetResource().Resource == "streams" {
			count++
		}
	}
	return count
}

func TestAStreamGetsItsStatus(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	b.look()
	got := b.status("s")
	if got.StatusInfo.TalkerStatus != v1alpha1.TalkerReady || got.Frames != 5 || got.NodesApplied != "1/1" || got.Nodes[0].Pods[0] != "talker" {
		t.Errorf("%+v", got)
	}
	b.seen("s")
	// Nothing new: nothing is written. New counters alone: at most every ten seconds.
	b.look()
	b.report("a", reportOf(t, 9))
	b.look()
	if count := b.writes(); count != 1 {
		t.Errorf("%d writes", count)
	}
	b.clock = b.clock.Add(countersEvery)
	b.look()
	if got := b.status("s"); b.writes() != 2 || got.Frames != 9 || !got.Nodes[0].AppliedSince.Time.Equal(b.clock.Add(-countersEvery)) {
		t.Errorf("%d writes, %+v", b.writes(), got)
	}
	b.seen("s")
	// A decision is written at once.
	b.report("a", "{}")
	b.look()
	if got := b.status("s"); b.writes() != 3 || got.Nodes[0].State != v1alpha1.StreamWaiting || got.Nodes[0].Applied {
		t.Errorf("%d writes, %+v", b.writes(), got)
	}
	want := "# HELP ktsn_controller_streams Streams by their condition Accepted: accepted, refused, waiting.\n# TYPE ktsn_controller_streams gauge\n" +
		"ktsn_controller_streams{state=\"accepted\"} 0\nktsn_controller_streams{state=\"refused\"} 0\nktsn_controller_streams{state=\"waiting\"} 1\n"
	if err := testutil.GatherAndCompare(b.Registry(), strings.NewReader(want), "ktsn_controller_streams"); err != nil {
		t.Error(err)
	}
}

// A node that is not heard of any more keeps its place, but what it said last is no proof.
func TestANodeThatIsAwayIsNotApplied(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	for _, c := range []struct {
		ready corev1.ConditionStatus
		want  string
	}{{corev1.ConditionTrue, "1/1 Accepted"}, {corev1.ConditionUnknown, "0/1 NodeNotReady"}, {corev1.ConditionTrue, "1/1 Accepted"}} {
		found, err := b.kube.CoreV1().Nodes().Get(context.Background(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found = found.DeepCopy()
		found.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: c.ready}}
		if _, err := b.kube.CoreV1().Nodes().Update(context.Background(), found, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually.Holds(t, "the condition is seen", func() bool {
			seen, err := b.nodes.Get("a")
			return err == nil && len(seen.Status.Conditions) == 2 && seen.Status.Conditions[1].Status == c.ready
		})
		b.look()
		if got := b.status("s"); got.NodesApplied+" "+got.Nodes[0].Reason != c.want || got.NodesAccepted != "1/1" {
			t.Errorf("%s: %+v", c.want, got)
		}
		b.seen("s")
	}
}

// What the informers keep of a pod is what a talker is found by; pods that have ended are none.
func TestPodsAreKeptSmall(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	pod, err := b.work.pods.Pods("plant").Get("talker")
	if err != nil || pod.Spec.Containers != nil || pod.Annotations != nil || pod.Spec.NodeName != "a" || pod.Labels["app"] != "talker" {
		t.Errorf("%+v, %v", pod, err)
	}
	ended := talkerPod("talker", "a")
	ended.Status.Phase = corev1.PodSucceeded
	if _, err := b.kube.CoreV1().Pods("plant").Update(context.Background(), ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the end is seen", func() bool {
		pod, err := b.work.pods.Pods("plant").Get("talker")
		return err == nil && pod.Status.Phase == corev1.PodSucceeded
	})
	b.look()
	if got := b.status("s"); got.Conditions[0].Reason != "NoTalker" {
		t.Errorf("%+v", got)
	}
}

// A controller that died before or after a write is followed by one that comes to the same; since when it is applied stays.
func TestAnotherControllerGoesOn(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	fail := true
	b.dynamic.PrependReactor("update", "streams", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail, nil, errors.New("the API server is away")
	})
	if err := b.Streams(context.Background()); err == nil {
		t.Error("the failed write is not told")
	}
	fail = false
	for attempt := range 3 {
		other := follow(t, b.kube, b.dynamic)
		b.clock = b.clock.Add(time.Hour)
		b.lead(other)
		if err := other.Streams(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := b.status("s"); b.writes() != 2 || !got.Nodes[0].AppliedSince.Time.Equal(time.Unix(1_800_000_000, 0).Add(time.Hour)) {
			t.Errorf("attempt %d: %d writes, %+v", attempt, b.writes(), got)
		}
	}
}

func TestOfTwoControllersOneStreamStatusCounts(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	other := follow(t, b.kube, b.dynamic)
	b.lead(other)
	other.work.store = frozen(t, other.work.store)
	for _, c := range []*Controller{b.Controller, other} {
		if err := c.Streams(context.Background()); err != nil {
			t.Errorf("a conflict is no fault: %v", err)
		}
	}
	if object, err := b.dynamic.Tracker().Get(v1alpha1.Streams, "plant", "s"); err != nil || object.(*unstructured.Unstructured).GetResourceVersion() != "8" {
		t.Errorf("not written once: %v, %v", object, err)
	}
	if b.writes() != 2 {
		t.Errorf("%d attempts, expected one of each", b.writes())
	}
}

// A cluster whose CRDs are older has no Streams: GateSchedules go on, nothing is a fault.
func TestWithoutTheResourceNothingIsWrong(t *testing.T) {
	b := newBench(t, node("a", time.Hour, nil))
	b.dynamic.PrependReactor("list", "streams", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(v1alpha1.Streams.GroupResource(), "")
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		b.Lead(ctx, nil)
		close(done)
	}()
	eventually.Holds(t, "it leads", func() bool { return testutil.ToFloat64(b.metrics.leader) == 1 })
	if err := errors.Join(b.Fault(), b.Stuck()); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if testutil.ToFloat64(b.metrics.leader) != 0 {
		t.Error("leads no more")
	}
	for at, want := range map[time.Time]bool{{}: false, time.Now().Add(-time.Minute): false, time.Now().Add(-stuckAfter - time.Second): true} {
		b.Controller.look(partStreams, at)
		if err := b.Stuck(); (err != nil) != want {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// Without the right to list Streams none is decided about: that is said once, not at each try.
func TestAMissingRightIsSaidOnce(t *testing.T) {
	b := newBench(t)
	var said strings.Builder
	b.log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo}))
	refuse := func(err error) {
		b.dynamic.PrependReactor("list", "streams", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
		for range 3 {
			if b.followStreams(context.Background()) == nil {
				t.Error("followed")
			}
		}
	}
	refuse(apierrors.NewNotFound(v1alpha1.Streams.GroupResource(), ""))
	if said.Len() != 0 {
		t.Errorf("a cluster without the resource: %s", said.String())
	}
	refuse(apierrors.NewForbidden(v1alpha1.Streams.GroupResource(), "", errors.New("no such right")))
	if text := said.String(); strings.Count(text, "level=WARN") != 1 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such right") {
		t.Errorf("%q", text)
	}
}

func TestMetricsAreAsPrometheusWantsThem(t *testing.T) {
	b := newBench(t, gateSchedule(t, "line"))
	if err := b.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(b.Registry()); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	want := "# HELP ktsn_controller_gate_schedules GateSchedules by phase.\n# TYPE ktsn_controller_gate_schedules gauge\n"
	for _, phase := range []string{"Applied", "Checking", "Committed", "Pending"} {
		want += fmt.Sprintf("ktsn_controller_gate_schedules{phase=%q} 0\n", phase)
	}
	want += "ktsn_controller_gate_schedules{phase=\"Rejected\"} 1\n" // no node
	want += "# HELP ktsn_controller_reconcile_errors_total Looks that ended with an error, by part; the log says which.\n# TYPE ktsn_controller_reconcile_errors_total counter\n"
	for _, part := range []string{"gateschedules", "prefixes", "streams"} {
		want += fmt.Sprintf("ktsn_controller_reconcile_errors_total{part=%q} 0\n", part)
	}
	if err := testutil.GatherAndCompare(b.Registry(), strings.NewReader(want), "ktsn_controller_gate_schedules", "ktsn_controller_reconcile_errors_total"); err != nil {
		t.Error(err)
	}
}

// Where nothing has changed no look is made, but one in a while: places of streams without pods end by the clock.
func TestNothingNewIsNotLookedAt(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	b.look()
	b.seen("s")
	b.look()
	counted := &countedStore{Store: b.work.store}
	b.work.store = counted
	b.look()
	if counted.lists != 0 {
		t.Errorf("%d looks at nothing new", counted.lists)
	}
	b.clock = b.clock.Add(countersEvery)
	b.look()
	b.dirty()
	b.look()
	if counted.lists != 2 {
		t.Errorf("%d looks, expected one by the clock and one for a change", counted.lists)
	}
}

type countedStore struct {
	cache.Store
	lists int
}

func (c *countedStore) List() []any {
	c.lists++
	return c.Store.List()
}

func TestWhatChangesNoJudgement(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1", Annotations: map[string]string{"x": "1"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1", Labels: map[string]string{"app": "x"}}, Spec: corev1.PodSpec{NodeName: "a"}}
	for name, c := range map[string]struct {
		after any
		want  bool
	}{
		"a Node's beat": {changed(node, func(n *corev1.Node) {
			n.ResourceVersion = "2"
			n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		}), true},
		"an annotation": {changed(node, func(n *corev1.Node) { n.Annotations["x"] = "2" }), false},
		"away":          {changed(node, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), false},
		"a pod's beat":  {changed(pod, func(p *corev1.Pod) { p.ResourceVersion = "2" }), true},
		"another pod":   {changed(pod, func(p *corev1.Pod) { p.UID = "2" }), false},
		"a label":       {changed(pod, func(p *corev1.Pod) { p.Labels["app"] = "y" }), false},
		"an end":        {changed(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"on a node":     {changed(pod, func(p *corev1.Pod) { p.Spec.NodeName = "b" }), false},
	} {
		before := any(node)
		if _, isPod := c.after.(*corev1.Pod); isPod {
			before = pod
		}
		if got := isJudgedAlike(before, c.after); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func changed[T interface{ DeepCopy() T }](object T, change func(T)) T {
	copied := object.DeepCopy()
	change(copied)
	return copied
}
