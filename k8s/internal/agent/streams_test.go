// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/stream"
)

func talkerPod(namespace, name, uid string, labels map[string]string) *kinds.Pod {
	return &kinds.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Labels: labels}}
}

func stateOf(container, namespace, pod, uid string) *cnistate.State {
	return &cnistate.State{
		ContainerID: container, IfName: "net1", Pod: cniconf.Pod{Namespace: namespace, Name: pod, UID: uid}, Attachment: container + "/net1", Done: true,
		Result: json.RawMessage(`{"interfaces":[{"name":"ktsn0","mtu":9000},{"name":"net1","mtu":1450,"sandbox":"/run/netns/x"}]}`),
	}
}

func attached(name, uplink, overlay string, classes ...int) *nodeapi.AttachmentState {
	listed, err := json.Marshal(map[string]any{"name": name, "uplink": uplink, "overlay": json.RawMessage(overlay), "classes": classes, "late": "drop"})
	if err != nil {
		panic(err)
	}
	return &nodeapi.AttachmentState{Name: name, Attachment: string(listed)}
}

const noOverlay = `"none"`

func line() *v1alpha1.Stream {
	return &v1alpha1.Stream{
		ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "s", UID: "s"},
		Spec:       v1alpha1.StreamSpec{Talker: v1alpha1.Talker{PodSelector: map[string]string{"app": "talker"}}},
	}
}

func TestTalkersAreReported(t *testing.T) {
	is, isNot := map[string]string{"app": "talker"}, map[string]string{"app": "other"}
	look := streamLook{
		streams: []*v1alpha1.Stream{line()}, uplink: "eth0",
		pods: []*kinds.Pod{
			talkerPod("plant", "v4", "u1", is), talkerPod("plant", "v6", "u2", is), talkerPod("plant", "plain", "u3", is),
			talkerPod("plant", "other", "u4", isNot), talkerPod("elsewhere", "v4", "u5", is), talkerPod("plant", "anew", "u7", is), talkerPod("plant", "detached", "u8", is),
		},
		states: []*cnistate.State{
			stateOf("c1", "plant", "v4", "u1"), stateOf("c2", "plant", "v6", "u2"), stateOf("c3", "plant", "plain", ""), stateOf("c4", "plant", "other", "u4"),
			stateOf("c5", "elsewhere", "v4", "u5"), stateOf("c6", "plant", "anew", "u6"), stateOf("c8", "plant", "detached", "u8"),
		},
		list: &nodeapi.ListReply{
			Ports: []*nodeapi.Port{{Device: "eth0", LinkSpeed: 1e9}, {Device: "eth1", LinkSpeed: 25e8}, {Device: "eth1", Netns: "/run/netns/x", LinkSpeed: 1}},
			Attachments: []*nodeapi.AttachmentState{
				attached("c1/net1", "", `{"vxlan":{"local":"192.0.2.1"}}`, 0, 1, 6, 9), attached("c2/net1", "eth1", `{"vxlan":{"local":"2001:db8::1"}}`, 7),
				attached("c3/net1", "eth1", noOverlay), attached("c4/net1", "eth0", noOverlay), attached("c5/net1", "eth0", noOverlay), attached("c6/net1", "eth0", noOverlay),
			},
		},
		gates: &nodeapi.GetScheduleReply{Ports: []*nodeapi.ScheduleState{{Port: "eth0", Name: "k8s/line@3.x", LinkSpeed: 100e6, HandOverNs: 9100}}},
		statistics: &nodeapi.StatisticsReply{Attachments: []*nodeapi.AttachmentStatistics{{
			Name: "c1/net1", Taken: 12, Sent: 10, SentOctets: 920, Late: 1, Overrun: 2, Waited: 5, Dropped: map[string]uint64{"missed": 3, "policed": 0},
			Bypassed: map[string]uint64{"not_allowed": 4}, TransmitError: &nodeapi.Histogram{P50: 900, P99: 4000},
		}}},
	}
	want := stream.Report{
		Ports: map[string]stream.PortReport{"eth0": {LinkSpeed: 100e6, HandOver: 10_000, Schedule: "k8s/line@3.x"}, "eth1": {LinkSpeed: 25e8}},
		Talkers: []stream.TalkerReport{
			{Namespace: "plant", Pod: "v4", UID: "u1", Interface: "net1", Port: "eth0", Overhead: 50, MTU: 1450, Classes: 0x43, StreamCounters: v1alpha1.StreamCounters{
				Frames: 10, Octets: 920, Late: 1, Overrun: 2, Waited: 5, Lost: map[string]int64{"missed": 3}, Refused: map[string]int64{"not_allowed": 4}, ErrorP50: 900, ErrorP99: 4000,
			}},
			{Namespace: "plant", Pod: "v6", UID: "u2", Interface: "net1", Port: "eth1", Overhead: 70, MTU: 1450, Classes: 0x80},
			{Namespace: "plant", Pod: "plain", UID: "u3", Interface: "net1", Port: "eth1", MTU: 1450},
		},
	}
	if got := look.report(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nexpected\n%+v", got, want)
	}
	look.streams = nil
	if got := look.report(); got.Talkers != nil {
		t.Errorf("nobody asks: %+v", got)
	}
}

func (d *talking) List(context.Context, *nodeapi.ListRequest, ...grpc.CallOption) (*nodeapi.ListReply, error) {
	if d.down {
		return nil, errDown
	}
	return &nodeapi.ListReply{
		Ports:       []*nodeapi.Port{{Device: "eth0", LinkSpeed: d.speed}},
		Attachments: []*nodeapi.AttachmentState{attached("c1/net1", "eth0", noOverlay, 0)},
	}, nil
}

func (d *talking) Statistics(context.Context, *nodeapi.StatisticsRequest, ...grpc.CallOption) (*nodeapi.StatisticsReply, error) {
	return &nodeapi.StatisticsReply{Attachments: []*nodeapi.AttachmentStatistics{{Name: "c1/net1", Sent: d.frames}}}, nil
}

// talking is a ktsnd with one attachment.
type talking struct {
	*daemon
	frames, speed uint64
}

func TestTheAnnotationFollowsAndStaysWhileTheDaemonIsAway(t *testing.T) {
	pod := talkerPod("plant", "talker", "u1", map[string]string{"app": "talker"})
	pod.Spec.NodeName = "kn1"
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0), kubetest.As[corev1.Pod](pod))
	if err := cnistate.Open(b.config.CNIStateDir).Save(stateOf("c1", "plant", "talker", "u1")); err != nil {
		t.Fatal(err)
	}
	object, err := line().ToUnstructured()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[schema.GroupVersionResource]string{v1alpha1.GateSchedules: "GateScheduleList", v1alpha1.Streams: "StreamList"}
	b.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, object)
	b.Agent.daemon = &talking{daemon: b.daemon}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	b.informers(ctx)
	informer, synced := Follow(ctx, b.dynamic, v1alpha1.Streams, nil, nil, func() {})
	b.eventually("all is seen", func() bool { return synced() && b.parts.get(partAPI) == nil })
	said := &saidOfStreams{}
	look := func() error { return b.reportStreams(ctx, informer.GetStore(), said) }
	annotation := func() string { return annotationOf(b.kube, "kn1", stream.Annotation) }
	if err := look(); err != nil || !strings.Contains(annotation(), `"pod":"talker"`) {
		t.Fatalf("%v: %s", err, annotation())
	}
	b.eventually("it is seen", func() bool {
		found, err := b.nodes.Get("kn1")
		return err == nil && found.Annotations[stream.Annotation] != ""
	})
	// The same again is not written again.
	b.kube.ClearActions()
	if err := look(); err != nil || len(b.kube.Actions()) != 0 {
		t.Errorf("%v: %v", err, b.kube.Actions())
	}
	// New counters alone have to wait; something else has not.
	talks := b.Agent.daemon.(*talking)
	talks.frames = 5
	if err := look(); err != nil || len(b.kube.Actions()) != 0 {
		t.Errorf("%v: %v", err, b.kube.Actions())
	}
	said.at = time.Now().Add(-streamEvery)
	if err := look(); err != nil || !strings.Contains(annotation(), `"frames":5`) {
		t.Errorf("%v: %s", err, annotation())
	}
	talks.frames, talks.speed = 6, 1e9
	if err := look(); err != nil || !strings.Contains(annotation(), `"frames":6`) {
		t.Errorf("%v: %s", err, annotation())
	}
	before := annotation()
	b.daemon.down = true
	if err := look(); err == nil || annotation() != before {
		t.Errorf("%v: %s", err, annotation())
	}
	// Without a talker nothing is left of it, whether ktsnd is there or not.
	if err := informer.GetStore().Replace(nil, "9"); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil || annotation() != "{}" {
		t.Errorf("%v: %s", err, annotation())
	}
}

func TestHandOversAreRounded(t *testing.T) {
	for span, want := range map[uint64]int64{0: 0, 1: 10_000, 10_000: 10_000, 20_000: 20_000, 20_001: 30_000, 1 << 62: 1_000_000_000} {
		if got := rounded(span); got != want {
			t.Errorf("%d: %d, expected %d", span, got, want)
		}
	}
}

func TestCountersAreSeldomInALargeCluster(t *testing.T) {
	for nodes, want := range map[int]time.Duration{1: 10 * time.Second, 20: 10 * time.Second, 200: 100 * time.Second, 1000: 500 * time.Second} {
		if got := countersEvery(nodes); got != want {
			t.Errorf("%d nodes: %s", nodes, got)
		}
	}
}

func TestTheTagCounts(t *testing.T) {
	for want, attachment := range map[int64]string{
		0: `{"overlay":"none"}`, 4: `{"vlan":5}`, 50: `{"vlan":5,"overlay":{"vxlan":{}}}`,
	} {
		if got := overheadOf(nodeapi.ReadAttachment(attachment), ""); got != want {
			t.Errorf("%d, expected %d", got, want)
		}
	}
}

// A hundred other nodes' reports are neither kept nor looked at.
func TestOthersReportsAreNotKept(t *testing.T) {
	for name, want := range map[string]bool{"kn1": true, "kn2": false} {
		object, err := slim("kn1")(listed(node(name, "192.0.2.1", map[string]string{stream.Annotation: "x", "ktsn.io/vtep": "y"}, 0)))
		found := object.(*kinds.Node)
		if _, has := found.Annotations[stream.Annotation]; err != nil || has != want || found.Annotations["ktsn.io/vtep"] != "y" {
			t.Errorf("%s: %+v", name, found.Annotations)
		}
	}
}
