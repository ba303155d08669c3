// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/stream"
)

const (
	streamsEvery = time.Second
	// countersEvery bounds how often a status is written for new counters alone; decisions are written at once. It is also how long a look is
	// left out where nothing has changed: places of streams without pods end by the clock.
	countersEvery = 10 * time.Second
	// resourceEvery is how often a cluster without Streams is asked for them.
	resourceEvery = 30 * time.Second
)

// streamWork is what following Streams needs; it begins when this controller leads.
type streamWork struct {
	store cache.Store
	pods  corelisters.PodLister
	memo  *stream.Memo
	tried map[types.UID]attempt // the last one, of a Stream's status

	looked time.Time // when all was looked at last, and what was wrong then
	fault  error
}

// LeadStreams decides about Streams until the context ends. It has a loop and a client of its own: many Streams must not make a
// GateSchedule's rollout late.
func (c *Controller) LeadStreams(ctx context.Context) {
	for c.followStreams(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(resourceEvery):
		}
	}
	defer c.look(partStreams, time.Time{})
	ticker := time.NewTicker(streamsEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		c.look(partStreams, time.Now())
		c.set(partStreams, c.metrics.timed(partStreams, func() error { return c.Streams(ctx) }))
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// followStreams starts the informers and waits until all was seen once. A cluster whose CRDs are older has no Streams.
func (c *Controller) followStreams(ctx context.Context) error {
	if _, err := c.slow.Resource(v1alpha1.Streams).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		c.sayNoStreams(err)
		return err
	}
	all := c.kube.CoreV1().Pods(metav1.NamespaceAll)
	pods := kube.Informer(sourceOf(all.List, all.Watch), &corev1.Pod{}, nil, kube.NewShares(podsBound, trimPod, c.sayOver("pods")))
	work := &streamWork{pods: corelisters.NewPodLister(pods.GetIndexer()), memo: stream.NewMemo()}
	podsSynced := agent.NotifyUnless(pods, c.dirty, isJudgedAlike)
	go pods.Run(ctx.Done())
	shares := kube.NewShares(streamsBound, trimStream, c.sayOver("Streams"))
	informer, synced := agent.Follow(ctx, c.slow, v1alpha1.Streams, v1alpha1.Typed, shares, c.dirty)
	work.store = informer.GetStore()
	if !cache.WaitForCacheSync(ctx.Done(), podsSynced, synced) {
		return ctx.Err()
	}
	c.work = work
	return nil
}

// sayNoStreams: a cluster without the resource is as it should be; anything else, such as a missing right, is said once.
func (c *Controller) sayNoStreams(err error) {
	level := slog.LevelDebug
	if text := err.Error(); !apierrors.IsNotFound(err) && text != c.noStreams {
		level, c.noStreams = slog.LevelWarn, text
	}
	c.log.Log(context.Background(), level, "Streams cannot be listed: none is decided about", "error", err)
}

// How much of each namespace is kept, so that a user who may write there does not fill the controller's memory. A Stream beyond it gets no
// verdict, a pod beyond it is no talker.
var (
	streamsBound = kube.Bound{Objects: 20_000, Octets: 24 << 20}
	podsBound    = kube.Bound{Objects: 50_000, Octets: 24 << 20}
)

// sayOver logs a namespace of which not all objects of a kind are kept.
func (c *Controller) sayOver(kind string) func(namespace, reason string) {
	return func(namespace, reason string) {
		c.log.Warn("a namespace has more than is kept of it; what is left out is not decided about", "kind", kind, "namespace", namespace, "reason", reason)
	}
}

// sourceOf lists and watches by a client's methods.
func sourceOf[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error), watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, options)
		},
		WatchFuncWithContext: watch,
	}
}

// trimPod keeps of a Pod what makes it a talker.
func trimPod(object runtime.Object) {
	one, is := object.(*corev1.Pod)
	if !is {
		return
	}
	one.ObjectMeta = metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name, UID: one.UID, ResourceVersion: one.ResourceVersion, Labels: one.Labels,
		DeletionTimestamp: one.DeletionTimestamp, CreationTimestamp: one.CreationTimestamp}
	one.Spec = corev1.PodSpec{NodeName: one.Spec.NodeName}
	one.Status = corev1.PodStatus{Phase: one.Status.Phase}
}

// trimStream leaves out what others write into a Stream's metadata. A write of its status changes none of that.
func trimStream(object runtime.Object) {
	one, is := object.(*unstructured.Unstructured)
	if !is {
		return
	}
	one.SetManagedFields(nil)
	one.SetAnnotations(nil)
}

// slim keeps of a Node what is looked at: its list of images alone has some kilobytes.
func slim(object any) (any, error) {
	if one, is := object.(*corev1.Node); is {
		one.ManagedFields = nil
		one.Status = corev1.NodeStatus{Addresses: one.Status.Addresses, Conditions: one.Status.Conditions}
	}
	return object, nil
}

// dirty makes the next look at Streams one at all of them.
func (c *Controller) dirty() { c.isDirty.Store(true) }

// isJudgedAlike is true when an update of a Node or a Pod, as `slim` keeps them, changes nothing that Streams are judged by. A kubelet says
// every few minutes that its Node is well.
func isJudgedAlike(before, after any) bool {
	switch is := after.(type) {
	case *corev1.Node:
		was, isNode := before.(*corev1.Node)
		return isNode && isAway(was) == isAway(is) && maps.Equal(was.Annotations, is.Annotations)
	case *corev1.Pod:
		was, isPod := before.(*corev1.Pod)
		return isPod && was.UID == is.UID && was.Spec.NodeName == is.Spec.NodeName && was.Status.Phase == is.Status.Phase &&
			maps.Equal(was.Labels, is.Labels)
	}
	return false
}

// Streams looks at all Streams once.
func (c *Controller) Streams(ctx context.Context) error {
	now := c.now()
	if !c.isDirty.Swap(false) && now.Sub(c.work.looked) < countersEvery {
		return c.work.fault
	}
	err := c.lookAtStreams(ctx, now)
	c.work.looked, c.work.fault = now, err
	if err != nil {
		c.dirty()
	}
	return err
}

func (c *Controller) lookAtStreams(ctx context.Context, now time.Time) error {
	world, faults, err := c.world()
	if err != nil {
		return err
	}
	next := world.Decide(now)
	counts := map[string]int{}
	for _, one := range world.Streams {
		counts[stateOf(next[one.UID])]++
	}
	counted(c.metrics.streams, []string{"accepted", "refused", "waiting"}, counts)
	written, areAll := c.chosen(world.Streams, next, now)
	if !areAll {
		c.dirty()
	}
	return errors.Join(append(faults, c.writeStreams(ctx, written))...)
}

func stateOf(status v1alpha1.StreamStatus) string {
	switch condition := meta.FindStatusCondition(status.Conditions, "Accepted"); {
	case condition == nil || condition.Status == metav1.ConditionUnknown:
		return "waiting"
	case condition.Status == metav1.ConditionTrue:
		return "accepted"
	}
	return "refused"
}

// isAway is true when the Node is not Ready, or its state is not known. A Node without conditions is new.
func isAway(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue
	})
}

// world is the last known state of everything. Objects that cannot be read are an error beside it.
func (c *Controller) world() (*stream.World, []error, error) {
	var faults []error
	world := &stream.World{CIDRs: c.prefixes.CIDRs, HandOver: c.handOver.Nanoseconds(), Memo: c.work.memo}
	for _, object := range c.work.store.List() {
		one, err := v1alpha1.StreamFrom(object)
		if err != nil {
			faults = append(faults, err)
		} else if one.DeletionTimestamp == nil {
			world.Streams = append(world.Streams, one)
		}
	}
	schedules, err := c.allSchedules()
	faults = append(faults, err)
	world.Schedules = schedules
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, nil, err
	}
	for _, node := range nodes {
		fact := c.facts.of(node)
		world.Nodes = append(world.Nodes, stream.Node{
			Name: node.Name, IsAway: isAway(node), Prefixes: fact.prefixes, Report: fact.report, Answers: fact.answers,
		})
	}
	pods, err := c.work.pods.List(labels.Everything())
	if err != nil {
		return nil, nil, err
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			world.Pods = append(world.Pods, stream.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: stream.ShortUID(pod.UID), Node: pod.Spec.NodeName, Labels: pod.Labels})
		}
	}
	return world, faults, nil
}
