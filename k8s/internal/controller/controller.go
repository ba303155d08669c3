// SPDX-License-Identifier: Apache-2.0

// Package controller is the cluster's part of KTSN: it divides the TSN network among the nodes and rolls gate schedules out.
//
// In: Nodes and GateSchedules. Out: the annotation ktsn.io/tsn-prefixes of Nodes, the status of GateSchedules. Every write
// carries the version of the object that it was decided on, so of two controllers that believe to lead one loses and looks
// again. It keeps nothing in memory that it needs: it may die anywhere.
package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

const (
	// lookEvery bounds how late a deadline is seen.
	lookEvery = 250 * time.Millisecond
	writeMax  = 10 * time.Second
)

// Controller reconciles while it leads.
type Controller struct {
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	prefixes Prefixes
	rollouts rollout.Config
	log      *slog.Logger
	now      func() time.Time

	assigned map[string][]netip.Prefix // to Nodes, written and not seen again yet

	nodes corelisters.NodeLister
	store cache.Store

	mutex sync.Mutex
	fault error
	told  string
}

// New makes a controller.
func New(kube kubernetes.Interface, custom dynamic.Interface, prefixes Prefixes, rollouts rollout.Config, log *slog.Logger) *Controller {
	return &Controller{
		kube: kube, dynamic: custom, prefixes: prefixes, rollouts: rollouts, log: log, now: time.Now,
		fault: errors.New("the API server's objects were not seen yet"),
	}
}

// Follow starts the informers, also while another one leads, and waits until all was seen once.
func (c *Controller) Follow(ctx context.Context, changed func()) bool {
	factory := informers.NewSharedInformerFactory(c.kube, 0)
	nodes := factory.Core().V1().Nodes()
	c.nodes = nodes.Lister()
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}
	registration, err := nodes.Informer().AddEventHandler(handler)
	if err != nil {
		panic(err) // only of an informer that has ended
	}
	factory.Start(ctx.Done())
	informer, synced := agent.FollowGateSchedules(ctx, c.dynamic, changed)
	c.store = informer.GetStore()
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced, synced) {
		return false
	}
	c.set(nil)
	return true
}

// Lead reconciles until the context ends.
func (c *Controller) Lead(ctx context.Context, signal <-chan struct{}) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		c.set(c.Reconcile(ctx))
		select {
		case <-ctx.Done():
			return
		case <-signal:
		case <-ticker.C:
		}
	}
}

func (c *Controller) set(err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.fault = err
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.told && text != "" {
		c.log.Warn("reconcile", "error", text)
	}
	c.told = text
}

// Fault is what does not work at the moment.
func (c *Controller) Fault() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.fault
}

// Reconcile looks at everything once.
func (c *Controller) Reconcile(ctx context.Context) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	return errors.Join(c.assign(ctx, nodes), c.schedules(ctx, nodes))
}

// assign gives prefixes to the nodes that have none.
func (c *Controller) assign(ctx context.Context, nodes []*corev1.Node) error {
	if len(c.prefixes.CIDRs) == 0 {
		return nil
	}
	used, missing := Used(nodes), Missing(nodes)
	// What was written a moment ago is not in the informer yet.
	waiting := map[string][]netip.Prefix{}
	for _, node := range missing {
		if prefixes, has := c.assigned[node.Name]; has {
			waiting[node.Name] = prefixes
			used = append(used, prefixes...)
		}
	}
	c.assigned = waiting
	for _, node := range missing {
		if _, has := waiting[node.Name]; has {
			continue
		}
		prefixes, err := c.prefixes.Assign(used)
		if err != nil {
			return fmt.Errorf("node %s: %w", node.Name, err)
		}
		used = append(used, prefixes...)
		text := strings.Join(overlaynet.Texts(prefixes), ",")
		// The version makes the patch fail where somebody else was quicker.
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, "annotations": map[string]string{overlaynet.AnnotationPrefixes: text},
		}})
		if err != nil {
			return err
		}
		if err := c.write(ctx, func(ctx context.Context) error {
			found, err := c.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err == nil && found.Annotations[overlaynet.AnnotationPrefixes] == text {
				waiting[node.Name] = prefixes
			}
			return err
		}); err != nil {
			return fmt.Errorf("node %s: %w", node.Name, err)
		}
		c.log.Info("prefixes assigned", "node", node.Name, "prefixes", text)
	}
	return nil
}

// write gives a write its deadline. Somebody else's earlier write, or an object that is gone, only means to look again.
func (c *Controller) write(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	err := act(ctx)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		c.log.Debug("looked at something old", "error", err)
		return nil
	}
	return err
}

// schedules moves each GateSchedule on by at most one step.
func (c *Controller) schedules(ctx context.Context, nodes []*corev1.Node) error {
	var all []*v1alpha1.GateSchedule
	var faults []error
	for _, object := range c.store.List() {
		schedule, err := v1alpha1.FromUnstructured(object)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if schedule.DeletionTimestamp == nil {
			all = append(all, schedule)
		}
	}
	// The oldest first: of two new ones for the same uplink the older one is begun.
	slices.SortFunc(all, func(a, b *v1alpha1.GateSchedule) int {
		if rollout.Older(a, b) {
			return -1
		}
		return 1
	})
	seen := nodesOf(nodes)
	for _, schedule := range all {
		next := c.rollouts.Next(schedule, all, seen, c.now())
		if equality.Semantic.DeepEqual(next, schedule.Status) {
			continue
		}
		if next.Phase != schedule.Status.Phase {
			c.log.Info("gate schedule", "name", schedule.Name, "phase", next.Phase, "message", next.Message)
		}
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
	return errors.Join(faults...)
}

func nodesOf(nodes []*corev1.Node) []rollout.Node {
	found := make([]rollout.Node, 0, len(nodes))
	for _, node := range nodes {
		if node.DeletionTimestamp == nil {
			found = append(found, rollout.Node{
				Name: node.Name, Labels: node.Labels, Answers: rollout.ParseAnswers(node.Annotations[rollout.Annotation]),
			})
		}
	}
	return found
}
