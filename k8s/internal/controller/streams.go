// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
	"ktsn.io/ktsn/k8s/internal/stream"
)

const (
	streamsEvery = time.Second
	// countersEvery bounds how often a status is written for new counters alone; decisions are written at once.
	countersEvery = 10 * time.Second
	// streamWritesMax of one look: the API server has others to serve.
	streamWritesMax = 5
	// resourceEvery is how often a cluster without Streams is asked for them.
	resourceEvery = 30 * time.Second
)

// streamWork is what following Streams needs; it begins when this controller leads.
type streamWork struct {
	store cache.Store
	pods  corelisters.PodLister
	memo  *stream.Memo
	tried map[types.UID]time.Time // when a status was written last, or not taken
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
	factory := informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithTransform(slim))
	pods := factory.Core().V1().Pods()
	work := &streamWork{pods: pods.Lister(), memo: stream.NewMemo()}
	podsSynced := pods.Informer().HasSynced
	factory.Start(ctx.Done())
	informer, synced := agent.Follow(ctx, c.slow, v1alpha1.Streams, func() {})
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

// slim keeps of a Pod what makes it a talker.
func slim(object any) (any, error) {
	if pod, is := object.(*corev1.Pod); is {
		pod.ManagedFields, pod.Annotations = nil, nil
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
	}
	return object, nil
}

// Streams looks at all Streams once.
func (c *Controller) Streams(ctx context.Context) error {
	world, faults, err := c.world()
	if err != nil {
		return err
	}
	now := c.now()
	next := world.Decide(now)
	var changed []*v1alpha1.Stream
	counts := map[string]int{}
	tried, isDecision := map[types.UID]time.Time{}, map[types.UID]bool{}
	for _, one := range world.Streams {
		status := next[one.UID]
		counts[stateOf(status)]++
		tried[one.UID] = c.work.tried[one.UID]
		if equality.Semantic.DeepEqual(status, one.Status) {
			continue
		}
		isDecision[one.UID] = !equality.Semantic.DeepEqual(decision(status), decision(one.Status))
		if !isDecision[one.UID] && now.Sub(tried[one.UID]) < countersEvery {
			continue
		}
		copied := *one
		copied.Status = status
		changed = append(changed, &copied)
	}
	counted(c.metrics.streams, []string{"accepted", "refused", "waiting"}, counts)
	// Decisions before counters. Each object gets its turn, also when writes of others fail.
	slices.SortStableFunc(changed, func(a, b *v1alpha1.Stream) int {
		if isDecision[a.UID] != isDecision[b.UID] {
			return map[bool]int{true: -1, false: 1}[isDecision[a.UID]]
		}
		return cmp.Or(tried[a.UID].Compare(tried[b.UID]), v1alpha1.CompareStreams(a, b))
	})
	for _, one := range changed[:min(len(changed), streamWritesMax)] {
		faults = append(faults, c.writeStream(ctx, one))
		tried[one.UID] = now
	}
	c.work.tried = tried
	return errors.Join(faults...)
}

func (c *Controller) writeStream(ctx context.Context, one *v1alpha1.Stream) error {
	object, err := one.ToUnstructured()
	if err != nil {
		return err
	}
	// With the version that it was decided on: of two that believe to lead one loses.
	return c.write(ctx, func(ctx context.Context) error {
		_, err := c.slow.Resource(v1alpha1.Streams).Namespace(one.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// decision is a status without its counters.
func decision(status v1alpha1.StreamStatus) v1alpha1.StreamStatus {
	bare := *status.DeepCopy()
	bare.Frames, bare.Late = 0, 0
	for index := range bare.Nodes {
		bare.Nodes[index].Counters = nil
	}
	return bare
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
		prefixes, _ := overlaynet.ParsePrefixes("", node.Annotations[overlaynet.AnnotationPrefixes]) // its agent says what is wrong
		world.Nodes = append(world.Nodes, stream.Node{
			Name: node.Name, IsAway: isAway(node), Prefixes: prefixes, Report: stream.ParseReport(node.Annotations[stream.Annotation]),
			Answers: rollout.ParseAnswers(node.Annotations[rollout.Annotation]),
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
