// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

// daemon is a ktsnd that can go away.
type daemon struct {
	nodeapi.NodeClient
	mutex    sync.Mutex
	down     bool
	older    bool // than the agent
	stuck    bool
	schedule *nodeapi.ScheduleState
	policies map[string]*nodeapi.AttachmentPolicy // said last, by attachment
	heard    []*nodeapi.AttachmentPolicy          // all that was said
	calls    int                                  // that said something
	missing  map[string]bool                      // attachments that are not there yet
	there    []string                             // attachments that are listed
	refused  string                               // attachment of which nothing is taken
	busy     chan struct{}                        // restrictions wait for its end
}

func (d *daemon) SetPolicies(_ context.Context, request *nodeapi.SetPoliciesRequest, _ ...grpc.CallOption) (*nodeapi.SetPoliciesReply, error) {
	if d.busy != nil {
		<-d.busy
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.down {
		return nil, errDown
	}
	d.calls++
	// As ktsnd and its transport do.
	isRefused := func(policy *nodeapi.AttachmentPolicy) bool { return policy.GetAttachment() == d.refused }
	if size := proto.Size(request); size > 4<<20 {
		return nil, &nodeapi.Error{Code: codes.OutOfRange, Text: "decoded message length too large"}
	} else if slices.ContainsFunc(request.GetPolicies(), isRefused) {
		return nil, &nodeapi.Error{Code: codes.InvalidArgument, Text: "no prefix"}
	}
	reply := &nodeapi.SetPoliciesReply{}
	for _, policy := range request.GetPolicies() {
		if d.missing[policy.GetAttachment()] {
			reply.Unknown = append(reply.Unknown, policy.GetAttachment())
			continue
		}
		d.policies[policy.GetAttachment()] = policy
		d.heard = append(d.heard, policy)
	}
	return reply, nil
}

// said is what was said last of an attachment; nil: nothing.
func (d *daemon) said(attachment string) *nodeapi.AttachmentPolicy {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.policies[attachment]
}

func (d *daemon) set(down bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.down = down
}

func (d *daemon) Compatible(context.Context) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.older {
		return &nodeapi.Error{Code: codes.FailedPrecondition, Text: "ktsnd is version 0.0.9"}
	}
	return nil
}

var errDown = errors.New("ktsnd is not running")

func (d *daemon) Health(context.Context, *nodeapi.HealthRequest, ...grpc.CallOption) (*nodeapi.HealthReply, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.down {
		return nil, errDown
	}
	if d.stuck {
		return &nodeapi.HealthReply{Threads: []*nodeapi.ThreadState{
			{Name: "ktsn-worker", Device: "eth1", SilentNs: 2_500_000_000, IsStuck: true}, {Name: "ktsn-registrar"},
		}}, nil
	}
	return &nodeapi.HealthReply{Serving: true, ClockSynchronised: true}, nil
}

func (d *daemon) GetSchedule(context.Context, *nodeapi.GetScheduleRequest, ...grpc.CallOption) (*nodeapi.GetScheduleReply, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.down {
		return nil, errDown
	}
	return &nodeapi.GetScheduleReply{Ports: []*nodeapi.ScheduleState{d.schedule}}, nil
}

func (d *daemon) List(context.Context, *nodeapi.ListRequest, ...grpc.CallOption) (*nodeapi.ListReply, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.down {
		return nil, errDown
	}
	reply := &nodeapi.ListReply{}
	for _, name := range d.there {
		reply.Attachments = append(reply.Attachments, &nodeapi.AttachmentState{
			Name: name, Policy: d.policies[name],
		})
	}
	return reply, nil
}

func (d *daemon) Statistics(context.Context, *nodeapi.StatisticsRequest, ...grpc.CallOption) (*nodeapi.StatisticsReply, error) {
	return &nodeapi.StatisticsReply{}, nil
}

// bench is an agent in folders of its own.
type bench struct {
	*Agent
	t      *testing.T
	daemon *daemon
	kube   *fake.Clientset
}

func newBench(t *testing.T, change func(*Config), network *overlaynet.Network, objects ...runtime.Object) *bench {
	t.Helper()
	root := t.TempDir()
	config, err := parse(nil, "--node-name=kn1", "--tsn-cidr=10.99.0.0/16,fd99::/48", "--capacity-unscheduled=5", "--listen=")
	if err != nil {
		t.Fatal(err)
	}
	config.Log = slog.New(slog.DiscardHandler)
	config.HealthGrace = 0
	for _, folder := range []*string{&config.RunDir, &config.KubeletDir, &config.InstallFrom, &config.LibDir, &config.CNIBinDir, &config.CNIStateDir} {
		if *folder, err = os.MkdirTemp(root, "d"); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"libktsn.so", "tsn-cni"} {
		var packed bytes.Buffer
		writer := gzip.NewWriter(&packed)
		writer.Write([]byte(file))
		writer.Close()
		if err := os.WriteFile(filepath.Join(config.InstallFrom, file+".gz"), packed.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&config)
	}
	kube := fake.NewClientset(objects...)
	d := &daemon{schedule: &nodeapi.ScheduleState{}, policies: map[string]*nodeapi.AttachmentPolicy{}, missing: map[string]bool{}}
	return &bench{New(config, kubetest.Of(kube), kubetest.Of(kube), nil, d, network), t, d, kube}
}

func (b *bench) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				b.t.Error(err)
			}
		case <-time.After(10 * time.Second):
			b.t.Error("the agent does not end")
		}
	})
}

func (b *bench) eventually(what string, holds func() bool) {
	b.t.Helper()
	eventually.Holds(b.t, what, holds, "not ready:", b.parts)
}

func (b *bench) node() nodefile.Node {
	node, err := nodefile.Read(b.nodeFilePath())
	if err != nil {
		return nodefile.Node{}
	}
	return node
}

func node(name, address string, annotations map[string]string, age time.Duration) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

// listed is a Node as the agent reads it.
func listed(node *corev1.Node) *kinds.Node { return kubetest.As[kinds.Node](node) }

func TestFilesAndReadinessWithoutAnOverlay(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "talker", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "kn1"}}
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0), pod)
	b.start()
	b.eventually("node.json", func() bool { return b.node().Ready && b.node().Capacity == 5 && b.node().Node == "kn1" })
	read := func() policyfile.File {
		var file policyfile.File
		_ = readJSON(filepath.Join(b.config.RunDir, policyfile.Name), &file)
		return file
	}
	b.eventually("the pod is known to be free", func() bool {
		pod, isKnown := read().Pods["a/talker"]
		return read().Synced && isKnown && pod.UID == "u1" && len(pod.Policies) == 0
	})
	policy := &networking.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "closed"},
		Spec:       networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress}},
	}
	if _, err := b.kube.NetworkingV1().NetworkPolicies("a").Create(context.Background(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("the pod is known to be selected", func() bool {
		return slices.Equal(read().Pods["a/talker"].Policies, []string{"closed"})
	})
	// There is no kubelet here, and that is all that is missing.
	b.eventually("only the kubelet is missing", func() bool {
		return strings.HasPrefix(b.parts.String(), "device-plugin: ") && !strings.Contains(b.parts.String(), "\n")
	})
	b.daemon.set(true)
	b.eventually("the daemon's absence", func() bool { return strings.Contains(b.get("/readyz"), "ktsnd: ktsnd is not running") })
	b.eventually("slots that cannot be used", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_slots_healthy 0") })
	if text := b.get("/metrics"); !strings.Contains(text, "ktsn_slots 5") || !strings.Contains(text, `ktsn_agent_not_ready{part="ktsnd"} 1`) ||
		!strings.Contains(text, "ktsn_up 0") {
		t.Errorf("metrics: %s", text)
	}
	b.daemon.set(false)
	b.daemon.mutex.Lock()
	b.daemon.stuck = true
	b.daemon.mutex.Unlock()
	b.eventually("the stuck thread", func() bool {
		return strings.Contains(b.get("/readyz"), "ktsnd: threads of ktsnd are stuck: ktsn-worker eth1 for 2.5s")
	})
	b.daemon.mutex.Lock()
	b.daemon.stuck = false
	b.daemon.mutex.Unlock()
	b.eventually("slots that can be used", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_slots_healthy 1") })
	if b.get("/livez") != "ok\n" {
		t.Error("/livez")
	}
}

// The agent is updated before ktsnd: the node's tsn-cni stays that of ktsnd, and the agent is not ready, until ktsnd follows.
func TestThePluginWaitsForKtsnd(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.daemon.older = true
	path := filepath.Join(b.config.CNIBinDir, "tsn-cni")
	if err := os.WriteFile(path, []byte("older"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("the reason", func() bool {
		return strings.Contains(b.get("/readyz"), "waits for ktsnd's update: ktsnd is version 0.0.9")
	})
	if text, err := os.ReadFile(path); err != nil || string(text) != "older" {
		t.Errorf("%s, %v", text, err)
	}
	b.daemon.mutex.Lock()
	b.daemon.older = false
	b.daemon.mutex.Unlock()
	b.eventually("the new one", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && string(text) == "tsn-cni" && !strings.Contains(b.get("/readyz"), "update")
	})
}

func (b *bench) get(path string) string {
	recorder := httptest.NewRecorder()
	b.handler(b.scrape(), true).ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
	text, _ := io.ReadAll(recorder.Body)
	return string(text)
}

func TestCapacityIsRememberedWhileTheDaemonIsAway(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.Overlay = false
		old := nodefile.Node{Node: "kn1", Capacity: 17}
		if err := nodefile.Write(filepath.Join(c.RunDir, nodefile.Name), old); err != nil {
			t.Fatal(err)
		}
	}, nil, node("kn1", "192.0.2.1", nil, 0))
	b.daemon.set(true)
	b.start()
	b.eventually("the old number", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_slots 17") })
	b.daemon.set(false)
	b.eventually("what ktsnd says", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_slots 5") })
	again := newBench(t, func(c *Config) {
		old := nodefile.Node{Node: "kn1", CIDRs: overlaynet.Texts(c.CIDRs), Prefixes: []string{"10.99.1.0/24"}, MTU: 1450, Uplink: "eth0", Ready: true}
		if err := nodefile.Write(filepath.Join(c.RunDir, nodefile.Name), old); err != nil {
			t.Fatal(err)
		}
	}, nil)
	if file := again.file; !file.Ready || file.MTU != 1450 || file.Uplink != "eth0" || len(file.Prefixes) != 1 {
		t.Errorf("forgotten: %+v", file)
	}
	other := newBench(t, func(c *Config) {
		_ = nodefile.Write(filepath.Join(c.RunDir, nodefile.Name), nodefile.Node{Node: "another", Capacity: 17})
	}, nil)
	if other.file.Capacity != 0 {
		t.Error("another node's number")
	}
}

func TestABusyDaemonIsNotGone(t *testing.T) {
	busy, gone := &nodeapi.Error{Code: codes.DeadlineExceeded}, &nodeapi.Error{Code: codes.Unavailable}
	stuck := func(name string) error {
		return notServing(&nodeapi.HealthReply{Threads: []*nodeapi.ThreadState{{Name: name, IsStuck: true}, {Name: "ktsn-worker"}}})
	}
	helper, worker, ending := stuck("ktsn-registrar"), stuck("ktsn-worker"), notServing(&nodeapi.HealthReply{})
	begin := time.Unix(1000, 0)
	for name, steps := range map[string][]struct {
		after time.Duration
		err   error
		want  bool
	}{
		"never there": {{0, gone, false}, {time.Second, nil, true}},
		"gone":        {{0, nil, true}, {3 * time.Second, gone, true}, {3001 * time.Millisecond, gone, false}, {4 * time.Second, nil, true}},
		"busy": {{0, nil, true}, {4 * time.Second, busy, true}, {29 * time.Second, busy, true}, {31 * time.Second, busy, false},
			{32 * time.Second, nil, true}},
		"busy, then gone":         {{0, nil, true}, {10 * time.Second, busy, true}, {12 * time.Second, gone, true}, {14 * time.Second, gone, false}},
		"busy from the beginning": {{0, busy, false}},
		"a stuck helper":          {{0, nil, true}, {4 * time.Second, helper, true}, {29 * time.Second, helper, true}, {31 * time.Second, helper, false}},
		"ending":                  {{0, nil, true}, {4 * time.Second, ending, true}, {5 * time.Second, gone, true}, {8 * time.Second, gone, false}},
		"a stuck worker":          {{0, nil, true}, {time.Second, worker, false}, {2 * time.Second, busy, false}, {3 * time.Second, nil, true}},
	} {
		var state health
		for _, step := range steps {
			if got := state.seen(begin.Add(step.after), step.err, 3*time.Second); got != step.want {
				t.Errorf("%s, after %s: %v", name, step.after, got)
			}
		}
	}
}

func TestInterfacesAreReadFromStates(t *testing.T) {
	folder := t.TempDir()
	states := cnistate.Open(folder)
	for _, state := range []*cnistate.State{
		{ContainerID: "c1", IfName: "net1", Pod: cniconf.Pod{Namespace: "a", Name: "talker"}, Attachment: "c1/net1", Capture: "kernel"},
		{ContainerID: "c2", IfName: "net1", Pod: cniconf.Pod{Namespace: "a", Name: "begun"}},
	} {
		if err := states.Save(state); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "c1", "net2.json"), []byte(`{"pod":{"name`), 0o600); err != nil {
		t.Fatal(err)
	}
	found := interfacesOf(folder)
	if len(found) != 1 || found[0].Pod != "talker" || found[0].Attachment != "c1/net1" || found[0].Capture != "kernel" {
		t.Errorf("%+v", found)
	}
	if found := interfacesOf(filepath.Join(folder, "missing")); found != nil {
		t.Errorf("no states yet: %v", found)
	}
}

// The informers must not throw away what a part of the agent reads.
func TestSlimKeepsWhatIsLookedAt(t *testing.T) {
	pod := &kinds.Pod{Spec: kinds.PodSpec{NodeName: "kn1", HostNetwork: true}}
	if trimPod(pod); pod.Spec.NodeName != "kn1" || !pod.Spec.HostNetwork {
		t.Errorf("%+v", pod.Spec)
	}
	node := listed(node("kn1", "192.0.2.1", nil, 0))
	node.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	if _, err := slim("kn1")(node); err != nil || len(overlaynet.ClaimsOf(node)) != 2 {
		t.Errorf("%+v, %v", node, err)
	}
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
