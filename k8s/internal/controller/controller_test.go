// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestAssignTakesTheLowestFreePrefix(t *testing.T) {
	p := Prefixes{CIDRs: prefixes("10.99.0.0/16", "fd99::/48"), IPv4: 24, IPv6: 64}
	for _, c := range []struct {
		name string
		used []netip.Prefix
		want string
	}{
		{"nothing used", nil, "10.99.0.0/24 fd99::/64"},
		{"the first used", prefixes("10.99.0.0/24", "fd99::/64"), "10.99.1.0/24 fd99:0:0:1::/64"},
		{"a gap", prefixes("10.99.0.0/24", "10.99.2.0/24"), "10.99.1.0/24 fd99::/64"},
		{"a larger one, not on our grid's first", prefixes("10.99.0.0/22", "10.99.4.128/25"), "10.99.5.0/24 fd99::/64"},
		{"elsewhere", prefixes("10.98.0.0/16"), "10.99.0.0/24 fd99::/64"},
		{"across 64 bits", prefixes("fd99::/49"), "10.99.0.0/24 fd99:0:0:8000::/64"},
	} {
		got, err := p.Assign(c.used, nil)
		if err != nil || strings.Join(overlaynet.Texts(got), " ") != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	for _, full := range []Prefixes{
		{CIDRs: prefixes("10.99.0.0/24"), IPv4: 25}, {CIDRs: prefixes("255.255.255.0/24"), IPv4: 24},
	} {
		used := prefixes("10.99.0.0/25", "10.99.0.128/25", "255.255.255.0/24")
		if got, err := full.Assign(used, nil); err == nil || !strings.Contains(err.Error(), "left: 3 are in use") {
			t.Errorf("full: %v, %v", got, err)
		}
	}
	if _, ok := lowestFree(netip.MustParsePrefix("ffff:ffff:ffff:ffff::/64"), 64, prefixes("ffff:ffff:ffff:ffff::/64")); ok {
		t.Error("behind the last address")
	}
}

func TestLengthsAreChecked(t *testing.T) {
	for text, p := range map[string]Prefixes{
		"--prefix-length-ipv4: found 15, expected 16 to 30 for 10.99.0.0/16": {CIDRs: prefixes("10.99.0.0/16"), IPv4: 15},
		"--prefix-length-ipv4: found 31":                                     {CIDRs: prefixes("10.99.0.0/16"), IPv4: 31},
		"--prefix-length-ipv6: found 127":                                    {CIDRs: prefixes("fd99::/48"), IPv6: 127},
	} {
		if err := p.Check(); err == nil || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// bench is a controller on an API server that refuses writes to old versions, as a real one does.
type bench struct {
	*Controller
	kube    *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	var nodes, custom []runtime.Object
	for _, object := range objects {
		if _, ok := object.(*unstructured.Unstructured); ok {
			custom = append(custom, object)
		} else {
			nodes = append(nodes, object)
		}
	}
	kube := fake.NewClientset(nodes...)
	kinds := map[schema.GroupVersionResource]string{v1alpha1.GateSchedules: "GateScheduleList", v1alpha1.Streams: "StreamList"}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, custom...)
	return &bench{follow(t, kube, client), kube, client}
}

func follow(t *testing.T, kube *fake.Clientset, client *dynamicfake.FakeDynamicClient) *Controller {
	t.Helper()
	p := Prefixes{CIDRs: prefixes("10.99.0.0/16"), IPv4: 24}
	c := New(kube, client, client, Config{Prefixes: p, Rollouts: rollout.Defaults, HandOver: 10 * time.Microsecond, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if c.Fault() == nil {
		t.Error("ready before anything was seen")
	}
	if !c.Follow(ctx, func() {}) || c.Fault() != nil {
		t.Fatalf("not followed: %v", c.Fault())
	}
	return c
}

func node(name string, age time.Duration, annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: annotations, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)), ResourceVersion: "1",
	}}
}

func gateSchedule(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	schedule := &v1alpha1.GateSchedule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Generation: 1, ResourceVersion: "7", CreationTimestamp: metav1.Now()},
		Spec:       v1alpha1.GateScheduleSpec{GateParameterTable: v1alpha1.GateParameterTable{GateEnabled: true}},
	}
	object, err := schedule.ToUnstructured()
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func TestNodesGetPrefixesOldestFirstAndKeepThem(t *testing.T) {
	b := newBench(t,
		node("young", time.Minute, nil), node("old", time.Hour, nil),
		node("by hand", time.Second, map[string]string{overlaynet.AnnotationPrefixes: "10.99.0.0/24"}),
		node("wrong", time.Second, map[string]string{overlaynet.AnnotationPrefixes: "nonsense"}),
	)
	if err := b.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"by hand": "10.99.0.0/24", "old": "10.99.1.0/24", "young": "10.99.2.0/24", "wrong": "nonsense"} {
		eventually.Holds(t, name+" has "+want, func() bool {
			found, err := b.kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
			return err == nil && found.Annotations[overlaynet.AnnotationPrefixes] == want
		})
	}
	// Each patch carries the version that it was decided on.
	for _, action := range b.kube.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && !strings.Contains(string(patch.GetPatch()), `"resourceVersion":"1"`) {
			t.Errorf("%s", patch.GetPatch())
		}
	}
	eventually.Holds(t, "a second look writes nothing", func() bool {
		b.kube.ClearActions()
		if err := b.Reconcile(context.Background()); err != nil {
			t.Fatal(err)
		}
		return len(b.kube.Actions()) == 0
	})
}

// An administrator gave a prefix to two nodes: the younger one gets another as long as no pod there uses it.
func TestAPrefixOfTwoNodesIsSeparated(t *testing.T) {
	has := func(text string) map[string]string { return map[string]string{overlaynet.AnnotationPrefixes: text} }
	pod := func(name, on, status string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "line", Annotations: map[string]string{networkStatus: status}},
			Spec:       corev1.PodSpec{NodeName: on},
		}
	}
	b := newBench(t,
		node("old", time.Hour, has("10.99.0.0/24")), node("young", time.Minute, has("10.99.0.128/25,10.99.5.0/24")),
		node("youngest", time.Second, has("10.99.0.0/24")), node("new", time.Millisecond, nil),
		pod("plc", "youngest", `[{"ips":["10.244.1.7"]},{"ips":["10.99.0.7","fd99::7"]}]`),
		pod("other", "youngest", `[{"ips":["10.99.1.7"]}]`), pod("elsewhere", "old", `[{"ips":["10.99.0.8"]}]`), pod("none", "youngest", "[]"),
	)
	of := func(name string) string {
		found, err := b.kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Annotations[overlaynet.AnnotationPrefixes]
	}
	err := b.Reconcile(context.Background())
	for _, word := range []string{"node youngest: its prefix 10.99.0.0/24 is node old's too", "1 pods have addresses", "(line/plc)", "kubectl annotate --overwrite node old"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	// A report keeps no node from getting a prefix; the kept one is of the same range, so it is enough.
	for name, want := range map[string]string{"old": "10.99.0.0/24", "young": "10.99.5.0/24", "youngest": "10.99.0.0/24", "new": "10.99.1.0/24"} {
		if got := of(name); got != want {
			t.Errorf("%s has %s, not %s", name, got, want)
		}
	}
	lists := func() (count int) {
		for _, action := range b.kube.Actions() {
			if action.Matches("list", "pods") {
				count++
			}
		}
		return count
	}
	before := lists()
	if again := b.Reconcile(context.Background()); again == nil || again.Error() != err.Error() || lists() != before {
		t.Errorf("a moment later: %v, asked %d times more", again, lists()-before)
	}
	if err := b.kube.CoreV1().Pods("line").Delete(context.Background(), "plc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(time.Minute)
	b.now = func() time.Time { return now }
	if err := b.Reconcile(context.Background()); err != nil || of("youngest") != "10.99.2.0/24" {
		t.Errorf("without that pod: %s, %v", of("youngest"), err)
	}
}

func TestARangeOfTheClustersIsNotGivenAway(t *testing.T) {
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.128.0/17"}}}
	b := newBench(t, node("a", time.Hour, nil), services)
	if err := b.Reconcile(context.Background()); err == nil || !strings.Contains(err.Error(), "overlaps 10.99.128.0/17 (Services)") {
		t.Errorf("services: %v", err)
	}
	for _, action := range b.kube.Actions() {
		if action.GetVerb() == "patch" {
			t.Errorf("something was written: %v", action)
		}
	}
	// One node's word is about that node alone.
	pods := node("b", time.Hour, nil)
	pods.Spec.PodCIDRs = []string{"10.99.7.0/24"}
	b = newBench(t, pods, node("a", time.Minute, nil))
	if err := b.Reconcile(context.Background()); err == nil || !strings.Contains(err.Error(), "overlaps 10.99.7.0/24 (pods of node b on the default network)") {
		t.Errorf("pods: %v", err)
	}
	for name, want := range map[string]string{"a": "10.99.0.0/24", "b": ""} {
		found, err := b.kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil || found.Annotations[overlaynet.AnnotationPrefixes] != want {
			t.Errorf("%s has %v, %v", name, found.Annotations, err)
		}
	}
}

func TestAPodThatMayHaveAnAddressUsesThePrefix(t *testing.T) {
	asked := map[string]string{networksAsked: "tsn"}
	status := func(text string) map[string]string {
		return map[string]string{networksAsked: "tsn", networkStatus: text}
	}
	address := []corev1.PodIP{{IP: "10.99.0.9"}}
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"on its way":             {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked}}, true},
		"on its way, host's":     {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked}, Spec: corev1.PodSpec{HostNetwork: true}}, false},
		"ended":                  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, false},
		"asks for nothing":       {corev1.Pod{}, false},
		"the default network's":  {corev1.Pod{Status: corev1.PodStatus{PodIPs: address}}, true},
		"elsewhere":              {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: status(`[{"ips":["10.99.1.9"]}]`)}}, false},
		"there":                  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: status(`[{"ips":["10.99.0.9"]}]`)}}, true},
		"what cannot be read is": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: status("{")}}, true},
	} {
		if got := uses(&c.pod, prefixes("10.99.0.0/24")); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Two controllers that both believe to lead have seen the same version: one write goes through, the other is refused and looked at
// again. The API server's rule is the fake's too.
func TestOfTwoControllersOneWriteCounts(t *testing.T) {
	b := newBench(t, node("a", time.Hour, map[string]string{overlaynet.AnnotationPrefixes: "10.99.0.0/24"}), gateSchedule(t, "line"))
	other := follow(t, b.kube, b.dynamic)
	other.store = frozen(t, other.store)
	var mutex sync.Mutex
	version, writes, refused := "7", 0, 0
	b.dynamic.PrependReactor("update", "gateschedules", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mutex.Lock()
		defer mutex.Unlock()
		object := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured)
		if object.GetResourceVersion() != version {
			refused++
			return true, nil, apierrors.NewConflict(v1alpha1.GateSchedules.GroupResource(), "line", errors.New("another was quicker"))
		}
		writes++
		version = "8"
		object.SetResourceVersion(version)
		return false, nil, nil
	})
	for _, c := range []*Controller{b.Controller, other} {
		if err := c.Reconcile(context.Background()); err != nil {
			t.Errorf("a conflict is no fault: %v", err)
		}
	}
	if writes != 1 || refused != 1 {
		t.Errorf("%d writes, %d refused", writes, refused)
	}
	eventually.Holds(t, "what was written is seen", func() bool {
		found, err := v1alpha1.FromUnstructured(b.store.List()[0])
		return err == nil && found.Status.Phase == v1alpha1.PhaseChecking && found.Status.Attempts == 1
	})
}

// frozen is what was seen, and stays so.
func frozen(t *testing.T, store cache.Store) cache.Store {
	t.Helper()
	copied := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := copied.Replace(store.List(), ""); err != nil {
		t.Fatal(err)
	}
	return copied
}

func TestTypesSurviveTheAPI(t *testing.T) {
	states := int32(255)
	want := &v1alpha1.GateSchedule{
		TypeMeta:   metav1.TypeMeta{APIVersion: "ktsn.io/v1alpha1", Kind: "GateSchedule"},
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: v1alpha1.GateScheduleSpec{
			NodeSelector: map[string]string{"a": "b"}, Uplink: "eth1", LinkSpeed: 1e9, PriorityMap: make([]int32, 16),
			GateParameterTable: v1alpha1.GateParameterTable{
				GateEnabled: true, AdminGateStates: &states, AdminBaseTime: 1 << 61, AdminCycleTime: 1e6,
				AdminControlList: []v1alpha1.GateControlEntry{{OperationName: "set-gate-states", GateStatesValue: 128, TimeIntervalValue: 1e6}},
				QueueMaxSduTable: []v1alpha1.QueueMaxSdu{{TrafficClass: 7, QueueMaxSdu: 512}},
			},
		},
		Status: v1alpha1.GateScheduleStatus{Phase: v1alpha1.PhaseApplied, Accepted: &v1alpha1.Rollout{Generation: 3, ConfigChangeTime: 1 << 60, Nodes: []string{"a"}}},
	}
	object, err := want.ToUnstructured()
	if err != nil {
		t.Fatal(err)
	}
	got, err := v1alpha1.FromUnstructured(object)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	copied := got.Status.DeepCopy()
	copied.Accepted.Nodes[0] = "changed"
	if got.Status.Accepted.Nodes[0] != "a" {
		t.Error("a copy shares memory")
	}
}
