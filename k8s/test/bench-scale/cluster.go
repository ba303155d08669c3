// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
	"ktsn.io/ktsn/k8s/internal/stream"
)

// namespaces that pods and Streams are divided among.
const namespaces = 50

// atOnce are the requests on their way.
const atOnce = 16

type size struct {
	nodes, podsEach, streamsEach, schedules int
	idle, churn                             time.Duration
	podsPerSecond, changesPerSecond         int
}

// cluster is what was made. A Node's cell is its index; its pods and Streams are in the namespace of its cell.
type cluster struct {
	size
	kube   kubernetes.Interface
	custom dynamic.Interface

	mutex     sync.Mutex
	asked     map[string]time.Time     // Streams that were changed, when
	counted   map[string]time.Duration // of them: until the verdict was seen
	replaced  atomic.Int64
	reportsOf sync.Map                // node index to its pods' names
	prefixes  map[string]netip.Prefix // of Nodes
}

func (c *cluster) streams() int { return c.nodes * c.streamsEach }

func nodeName(index int) string       { return fmt.Sprintf("node-%04d", index) }
func lineName(index int) string       { return fmt.Sprintf("line-%02d", index) }
func namespaceOf(node int) string     { return fmt.Sprintf("plant-%02d", node%namespaces) }
func streamName(node, n int) string   { return fmt.Sprintf("cell-%04d-%d", node, n) }
func (c *cluster) lineOf(n int) int   { return n * c.schedules / c.nodes }
func nodeAddress(index int) string    { return fmt.Sprintf("172.16.%d.%d", index/250, index%250+1) }
func annotation(value any) (s string) { text, _ := json.Marshal(value); return string(text) }

// each does something for 0 to count-1, several at once, and says how far it is.
func each(ctx context.Context, what string, count int, do func(index int) error) error {
	return some(ctx, what, count, atOnce, do)
}

func some(ctx context.Context, what string, count, atOnce int, do func(index int) error) error {
	begun := time.Now()
	var next, done atomic.Int64
	var group sync.WaitGroup
	faults := make(chan error, atOnce)
	for range atOnce {
		group.Go(func() {
			for at := int(next.Add(1)) - 1; at < count && ctx.Err() == nil; at = int(next.Add(1)) - 1 {
				if err := do(at); err != nil {
					faults <- fmt.Errorf("%s %d: %w", what, at, err)
					return
				}
				if n := done.Add(1); what != "" && (n%5000 == 0 || n == int64(count)) {
					say("%d of %d %s, %.0f a second", n, count, what, float64(n)/time.Since(begun).Seconds())
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-faults:
		return err
	default:
		return ctx.Err()
	}
}

// fill makes all objects, in the order in which a cluster grows.
func (c *cluster) fill(ctx context.Context) error {
	for _, step := range []func() error{
		func() error {
			return each(ctx, "namespaces", namespaces, func(index int) error { return c.makeNamespace(ctx, index) })
		},
		func() error {
			return each(ctx, "Nodes", c.nodes, func(index int) error { return c.makeNode(ctx, index) })
		},
		func() error { return c.awaitPrefixes(ctx) },
		// A user applies them one after the other.
		func() error {
			return some(ctx, "GateSchedules applied", c.schedules, 4, func(index int) error { return c.rollOut(ctx, index) })
		},
		func() error {
			return each(ctx, "pods", c.nodes*c.podsEach, func(index int) error { return c.makePod(ctx, index/c.podsEach, index%c.podsEach, 0) })
		},
		func() error {
			return each(ctx, "reports", c.nodes, func(index int) error { return c.firstReport(ctx, index) })
		},
		func() error {
			return each(ctx, "Streams", c.streams(), func(index int) error { return c.makeStream(ctx, index/c.streamsEach, index%c.streamsEach) })
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) makeNamespace(ctx context.Context, index int) error {
	_, err := c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(index)}}, metav1.CreateOptions{})
	return err
}

func (c *cluster) firstReport(ctx context.Context, node int) error {
	names := make([]string, c.podsEach)
	for number := range names {
		names[number] = podName(node, number, 0)
	}
	c.reportsOf.Store(node, names)
	return c.report(ctx, node)
}

func (c *cluster) makeNode(ctx context.Context, index int) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(index), Labels: map[string]string{
		"kubernetes.io/hostname": nodeName(index), "line": lineName(c.lineOf(index)),
	}}}
	node, err := c.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(index)}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	_, err = c.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// annotate writes one annotation of a Node, as an agent does.
func (c *cluster) annotate(ctx context.Context, index int, name, text string) error {
	patch := annotation(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: text}}})
	_, err := c.kube.CoreV1().Nodes().Patch(ctx, nodeName(index), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// awaitPrefixes waits until each Node has its prefix; its agent then says where the Node is.
func (c *cluster) awaitPrefixes(ctx context.Context) error {
	begun := time.Now()
	for ctx.Err() == nil {
		list, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		missing := 0
		c.prefixes = map[string]netip.Prefix{}
		for _, node := range list.Items {
			text := node.Annotations[overlaynet.AnnotationPrefixes]
			if text == "" {
				missing++
			} else if c.prefixes[node.Name], err = netip.ParsePrefix(text); err != nil {
				return err
			}
		}
		if missing == 0 && len(list.Items) >= c.nodes {
			say("all Nodes have prefixes %.1f s after the last Node", time.Since(begun).Seconds())
			return each(ctx, "places of Nodes", c.nodes, func(index int) error {
				return c.annotate(ctx, index, overlaynet.AnnotationVTEP, annotation(map[string]any{
					"address": nodeAddress(index), "mac": fmt.Sprintf("02:00:00:00:%02x:%02x", index>>8, index&255), "vni": 1588, "port": 4789,
				}))
			})
		}
		if time.Since(begun) > 10*time.Minute {
			return fmt.Errorf("%d Nodes have no prefix after ten minutes", missing)
		}
		time.Sleep(500 * time.Millisecond)
	}
	return ctx.Err()
}

func (c *cluster) makeSchedule(ctx context.Context, index int) error {
	one := &v1alpha1.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: lineName(index)}, Spec: v1alpha1.GateScheduleSpec{
		NodeSelector: map[string]string{"line": lineName(index)},
		GateParameterTable: v1alpha1.GateParameterTable{GateEnabled: true, AdminControlList: []v1alpha1.GateControlEntry{
			{GateStatesValue: 64, TimeIntervalValue: 500_000}, {GateStatesValue: 191, TimeIntervalValue: 500_000},
		}},
	}}
	object, err := one.ToUnstructured()
	if err == nil {
		_, err = c.custom.Resource(v1alpha1.GateSchedules).Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// rollOut makes a GateSchedule and answers for its Nodes until it is applied.
func (c *cluster) rollOut(ctx context.Context, index int) error {
	if err := c.makeSchedule(ctx, index); err != nil {
		return err
	}
	begun, answered := time.Now(), ""
	for ctx.Err() == nil && time.Since(begun) < 10*time.Minute {
		object, err := c.custom.Resource(v1alpha1.GateSchedules).Get(ctx, lineName(index), metav1.GetOptions{})
		if err != nil {
			return err
		}
		one, err := v1alpha1.FromUnstructured(object)
		if err != nil || one.Status.Phase == v1alpha1.PhaseApplied {
			return err
		}
		if answered, err = c.answer(ctx, one, answered); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return errors.Join(ctx.Err(), errors.New("it is not applied after ten minutes"))
}

// answer for the Nodes that a rollout asks, unless they have said it; what they have said now.
func (c *cluster) answer(ctx context.Context, schedule *v1alpha1.GateSchedule, answered string) (string, error) {
	candidate := schedule.Status.Candidate
	if candidate == nil {
		return answered, nil
	}
	state := rollout.StateReady
	if candidate.ConfigChangeTime != 0 {
		state = rollout.StateApplied
	}
	text := annotation(rollout.Answers{schedule.Name: {
		UID: string(schedule.UID), Generation: candidate.Generation, Attempt: candidate.Attempt, State: state, Port: "eth0", ConfigChangeTime: candidate.ConfigChangeTime,
	}})
	if answered == text {
		return text, nil
	}
	return text, some(ctx, "", len(candidate.Nodes), 8, func(at int) error {
		var index int
		if _, err := fmt.Sscanf(candidate.Nodes[at], "node-%d", &index); err != nil {
			return err
		}
		return c.annotate(ctx, index, rollout.Annotation, text)
	})
}

func podName(node, number, age int) string { return fmt.Sprintf("cell-%04d-%d-%d", node, number, age) }

func (c *cluster) makePod(ctx context.Context, node, number, age int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(node), Name: podName(node, number, age), Labels: map[string]string{
			"app": "cell", "cell": streamName(node, number), "pod-template-hash": fmt.Sprintf("%04d", node),
		}},
		Spec: corev1.PodSpec{
			NodeName: nodeName(node),
			Containers: []corev1.Container{{Name: "control", Image: "registry.example/control:1", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"ktsn.io/tsn": quantityOne}, Requests: corev1.ResourceList{"ktsn.io/tsn": quantityOne},
			}}},
		},
	}
	_, err := c.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// report writes what a Node's agent knows of its pods' interfaces.
func (c *cluster) report(ctx context.Context, node int) error {
	names, _ := c.reportsOf.Load(node)
	one := stream.Report{Ports: map[string]stream.PortReport{"eth0": {LinkSpeed: 1_000_000_000, HandOver: 20_000, Schedule: lineName(c.lineOf(node))}}}
	for _, pod := range names.([]string) {
		one.Talkers = append(one.Talkers, stream.TalkerReport{
			Namespace: namespaceOf(node), Pod: pod, Interface: "net1", Port: "eth0", Overhead: 50, MTU: 1450, Classes: 255,
		})
	}
	text, err := one.Text()
	if err != nil {
		return err
	}
	return c.annotate(ctx, node, stream.Annotation, text)
}

func (c *cluster) makeStream(ctx context.Context, node, number int) error {
	next := (node + 1) % c.nodes
	one := &v1alpha1.Stream{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(node), Name: streamName(node, number)},
		Spec: v1alpha1.StreamSpec{
			Talker: v1alpha1.Talker{PodSelector: map[string]string{"app": "cell", "cell": streamName(node, number)}}, Priority: 6,
			DataFrameSpecification: v1alpha1.DataFrameSpecification{
				DestinationIPAddress: c.prefixes[nodeName(next)].Addr().Next().String(), DestinationPort: int32(5000 + number)},
			TrafficSpecification: v1alpha1.TrafficSpecification{
				Interval: v1alpha1.Interval{Numerator: 1, Denominator: 1000}, MaxFramesPerInterval: 1, MaxFrameSize: 92},
		},
	}
	object, err := one.ToUnstructured()
	if err == nil {
		delete(object.Object, "status")
		_, err = c.custom.Resource(v1alpha1.Streams).Namespace(one.Namespace).Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// finishMax is how long a change that has begun may take, also after the churn's end.
const finishMax = 30 * time.Second

// change replaces pods, as a Deployment's rollout does, and changes Streams, until the context ends. What has begun then is finished: a
// request that is given up may have been carried out or not, and a Stream that was not changed gets no verdict.
func (c *cluster) change(ctx context.Context) error {
	while, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.churn+finishMax)
	defer cancel()
	pods, streams := time.NewTicker(time.Second/time.Duration(c.podsPerSecond)), time.NewTicker(time.Second/time.Duration(c.changesPerSecond))
	defer pods.Stop()
	defer streams.Stop()
	var group sync.WaitGroup
	var faults atomic.Pointer[error]
	begin := func(act func() error) {
		group.Go(func() {
			if err := act(); err != nil && !apierrors.IsConflict(err) {
				faults.Store(&err)
			}
		})
	}
	for turn, changed := 0, 0; ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-pods.C:
			this := turn
			begin(func() error { return c.replace(while, this) })
			turn++
		case <-streams.C:
			// From the other end: its pods stay.
			this := changed
			begin(func() error { return c.changeStream(while, c.nodes-1-this%(c.nodes/2), this/(c.nodes/2)%c.streamsEach) })
			changed++
		}
	}
	group.Wait()
	if err := faults.Load(); err != nil {
		return *err
	}
	return nil
}

// replace one pod of a Node by another: the agent's report follows.
func (c *cluster) replace(ctx context.Context, turn int) error {
	node, number, age := turn%(c.nodes/2), turn/(c.nodes/2)%c.podsEach, turn/(c.nodes/2*c.podsEach)
	least := int64(0)
	err := c.kube.CoreV1().Pods(namespaceOf(node)).Delete(ctx, podName(node, number, age), metav1.DeleteOptions{GracePeriodSeconds: &least})
	if err != nil {
		return err
	}
	if err := c.makePod(ctx, node, number, age+1); err != nil {
		return err
	}
	before, _ := c.reportsOf.Load(node)
	names := append([]string(nil), before.([]string)...)
	names[number] = podName(node, number, age+1)
	c.reportsOf.Store(node, names)
	c.replaced.Add(1)
	return c.report(ctx, node)
}

// changeStream makes another generation of a Stream and notes when.
func (c *cluster) changeStream(ctx context.Context, node, number int) error {
	key := namespaceOf(node) + "/" + streamName(node, number)
	resource := c.custom.Resource(v1alpha1.Streams).Namespace(namespaceOf(node))
	c.mutex.Lock()
	_, has := c.asked[key]
	c.asked[key] = time.Now()
	c.mutex.Unlock()
	if has {
		return fmt.Errorf("stream %s was changed twice: more Streams are needed for so long a churn", key)
	}
	patch := []byte(`{"spec":{"traffic-specification":{"max-frame-size":100}}}`)
	_, err := resource.Patch(ctx, streamName(node, number), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		c.mutex.Lock()
		delete(c.asked, key)
		c.mutex.Unlock()
	}
	return err
}

// follow notes when the verdict about each changed Stream is seen. It returns once all Streams were seen: a watch that begins with 10,000
// of them during the churn is behind for so long that the API server ends it, and it begins again.
func (c *cluster) follow(ctx context.Context) error {
	informer := kube.Custom(c.custom, v1alpha1.Streams, v1alpha1.Typed, nil)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, object any) { c.note(object, time.Now()) }})
	if err != nil {
		return err
	}
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// note a Stream that was seen; its first verdict counts.
func (c *cluster) note(object any, at time.Time) {
	one, err := v1alpha1.StreamFrom(object)
	if err != nil || one.Generation < 2 || one.Status.ObservedGeneration != one.Generation || one.Status.NodesApplied != "1/1" {
		return
	}
	key := one.Namespace + "/" + one.Name
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if asked, has := c.asked[key]; has && c.counted[key] == 0 {
		c.counted[key] = at.Sub(asked)
	}
}
