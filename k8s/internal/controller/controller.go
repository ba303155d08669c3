// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster's part of KTSN: it divides the TSN network among the nodes, rolls gate schedules out, and
// decides about streams.
//
// In: Nodes, Pods, GateSchedules and Streams. Out: the annotation ktsn.io/tsn-prefixes of Nodes, the status of GateSchedules and Streams.
// Every write carries the version of the object that it was decided on, so of two controllers that believe to lead one loses and looks
// again. It keeps nothing in memory that it needs: it may die anywhere.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

const (
	// lookEvery bounds how late a deadline is seen.
	lookEvery = 250 * time.Millisecond
	// restEvery is how often all is looked at while nothing changes and nothing is on its way.
	restEvery = 5 * time.Second
	writeMax  = 10 * time.Second
)

// Controller reconciles while it leads.
type Controller struct {
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	slow     dynamic.Interface // for Streams alone
	prefixes Prefixes
	rollouts rollout.Config
	handOver time.Duration
	log      *slog.Logger
	now      func() time.Time
	metrics  metrics
	work     *streamWork

	noStreams string // why they could not be listed, as it was said last

	assigned map[string]given   // to Nodes, written and not seen again yet
	services []overlaynet.Claim // ranges of Services

	doubled   error // what is known of prefixes that two Nodes have
	doubledAt time.Time

	nodes corelisters.NodeLister
	store cache.Store
	facts nodeFacts

	isDirty atomic.Bool // what Streams are judged by has changed since the last look
	isMoved atomic.Bool // Nodes or GateSchedules have changed since the last Reconcile, other than in reports of talkers
	isUnder bool        // a rollout is under way, or something was written that was not seen again yet

	mutex  sync.Mutex
	faults map[string]error     // by part
	looked map[string]time.Time // while it leads: when the last look ended, by part
}

// Config is what the command line says.
type Config struct {
	Prefixes Prefixes
	Rollouts rollout.Config
	// HandOver is kept free in front of the frames of each window, when Streams are judged.
	HandOver time.Duration
	Log      *slog.Logger
}

// HandOverLeast is the hand-over time that ktsnd assumes before it has measured (AT_START in its worker/hand_over_latency.rs): with less, a
// window could be called long enough in which ktsnd never sends.
const HandOverLeast = 20 * time.Microsecond

// partObjects: whether the objects were seen.
const partObjects = "objects"

// New makes a controller. `slow` is the client for Streams: what waits for its limits keeps nothing else waiting.
func New(kube kubernetes.Interface, custom, slow dynamic.Interface, config Config) *Controller {
	return &Controller{
		kube: kube, dynamic: custom, slow: slow, prefixes: config.Prefixes, rollouts: config.Rollouts, handOver: config.HandOver,
		log: config.Log, now: time.Now, metrics: newMetrics(), looked: map[string]time.Time{},
		faults: map[string]error{partObjects: errors.New("the API server's objects were not seen yet")},
	}
}

// Follow starts the informers, also while another one leads, and waits until all was seen once.
func (c *Controller) Follow(ctx context.Context, signal func()) bool {
	changed := func() {
		c.isMoved.Store(true)
		signal()
	}
	all := c.kube.CoreV1().Nodes()
	nodes := kube.Informer(sourceOf(all.List, all.Watch), &corev1.Node{}, slim, nil)
	c.nodes = corelisters.NewNodeLister(nodes.GetIndexer())
	nodesSynced := agent.Notify(nodes, changed)
	agent.NotifyUnless(nodes, c.dirty, isJudgedAlike)
	go nodes.Run(ctx.Done())
	c.services = c.serviceRanges(ctx)
	informer, synced := agent.Follow(ctx, c.dynamic, v1alpha1.GateSchedules, nil, nil, func() { changed(); c.dirty() })
	c.store = informer.GetStore()
	if !cache.WaitForCacheSync(ctx.Done(), nodesSynced, synced) {
		return false
	}
	c.set(partObjects, nil)
	return true
}

// Lead reconciles until the context ends.
func (c *Controller) Lead(ctx context.Context, signal <-chan struct{}) {
	c.metrics.leader.Set(1)
	defer c.metrics.leader.Set(0)
	c.look(partSchedules, time.Now())
	defer c.look(partSchedules, time.Time{})
	var group sync.WaitGroup
	defer group.Wait()
	group.Add(1)
	go func() {
		defer group.Done()
		c.LeadStreams(ctx)
	}()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var rested time.Time
	for {
		if c.isMoved.Swap(false) || c.isUnder || time.Since(rested) >= restEvery {
			err := c.Reconcile(ctx)
			c.isUnder = c.isUnder || err != nil
			c.set(partSchedules, err)
			rested = time.Now()
		}
		c.look(partSchedules, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-signal:
		case <-ticker.C:
		}
	}
}

func (c *Controller) look(part string, at time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.looked[part] = at
}

// stuckAfter is much longer than any look with all its deadlines.
const stuckAfter = 5 * time.Minute

// Stuck returns an error when a step does not end: then another process should lead.
func (c *Controller) Stuck() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for part, at := range c.looked {
		if since := time.Since(at); !at.IsZero() && since > stuckAfter {
			return fmt.Errorf("%s: the last look ended %s ago", part, since)
		}
	}
	return nil
}

func (c *Controller) set(part string, err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if before := c.faults[part]; err != nil && (before == nil || before.Error() != err.Error()) {
		c.log.Warn("reconcile", "part", part, "error", err)
	}
	c.faults[part] = err
}

// Fault returns the errors of the last steps.
func (c *Controller) Fault() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return errors.Join(c.faults[partObjects], c.faults[partSchedules], c.faults[partStreams])
}

// Reconcile does one step for everything except Streams.
func (c *Controller) Reconcile(ctx context.Context) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.isUnder = false
	return errors.Join(
		c.metrics.timed(partPrefixes, func() error { return c.assign(ctx, nodes) }),
		c.metrics.timed(partSchedules, func() error { return c.schedules(ctx, nodes) }),
	)
}

// write gives a write its deadline. A conflict with an earlier write, or an object that is gone, is no error: the next step reads the object again.
func (c *Controller) write(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	err := act(ctx)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		c.log.Debug("the object has changed meanwhile", "error", err)
		return nil
	}
	return err
}

// allSchedules returns the schedules that are not being deleted. Those that cannot be read are an error beside the others.
func (c *Controller) allSchedules() ([]*v1alpha1.GateSchedule, error) {
	var all []*v1alpha1.GateSchedule
	var faults []error
	for _, object := range c.store.List() {
		schedule, err := v1alpha1.FromUnstructured(object)
		if err != nil {
			faults = append(faults, err)
		} else if schedule.DeletionTimestamp == nil {
			all = append(all, schedule)
		}
	}
	return all, errors.Join(faults...)
}

// schedules moves each GateSchedule on by at most one step.
func (c *Controller) schedules(ctx context.Context, nodes []*corev1.Node) error {
	all, err := c.allSchedules()
	faults := []error{err}
	phases := map[string]int{}
	// The oldest first: of two new ones for the same uplink the older one is begun.
	slices.SortFunc(all, v1alpha1.ByAge)
	seen := c.nodesOf(nodes)
	for _, schedule := range all {
		next := c.rollouts.Next(schedule, all, seen, c.now())
		phases[next.Phase]++
		c.isUnder = c.isUnder || next.Phase != v1alpha1.PhaseApplied
		if equality.Semantic.DeepEqual(next, schedule.Status) {
			continue
		}
		if next.Phase != schedule.Status.Phase {
			c.log.Info("gate schedule", "name", schedule.Name, "phase", next.Phase, "message", next.Message)
		}
		c.isUnder = true
		schedule.Status = next
		object, err := schedule.ToUnstructured()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		faults = append(faults, c.write(ctx, func(ctx context.Context) error {
			_, err := c.dynamic.Resource(v1alpha1.GateSchedules).UpdateStatus(ctx, object, metav1.UpdateOptions{})
			return err
		}))
	}
	counted(c.metrics.schedules, v1alpha1.Phases, phases)
	return errors.Join(faults...)
}

func (c *Controller) nodesOf(nodes []*corev1.Node) []rollout.Node {
	c.facts.forget(nodes)
	found := make([]rollout.Node, 0, len(nodes))
	for _, node := range nodes {
		if node.DeletionTimestamp == nil {
			found = append(found, rollout.Node{
				Name: node.Name, Labels: node.Labels, Answers: c.facts.of(node).answers,
			})
		}
	}
	return found
}
