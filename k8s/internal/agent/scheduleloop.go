// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/rollout"
	"ktsn.io/ktsn/k8s/internal/stream"
)

const (
	scheduleEvery = 5 * time.Second
	// committedEvery while a rollout may have to be given up.
	committedEvery = 200 * time.Millisecond
	// resourceEvery is how often a cluster without the resource is asked for it.
	resourceEvery = 30 * time.Second
)

// awaitResource waits until the cluster has a resource: one without is one without GateSchedules or Streams.
func (a *Agent) awaitResource(ctx context.Context, resource schema.GroupVersionResource) bool {
	for {
		_, err := a.dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return true
		}
		a.config.Log.Debug("no "+resource.Resource, "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(resourceEvery):
		}
	}
}

// scheduleLoop follows the GateSchedules.
func (a *Agent) scheduleLoop(ctx context.Context) {
	if a.dynamic == nil || !a.awaitResource(ctx, v1alpha1.GateSchedules) {
		return
	}
	changed := make(chan struct{}, 1)
	informer, synced := Follow(ctx, a.dynamic, v1alpha1.GateSchedules, nil, nil, func() { poke(changed) })
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return
	}
	scheduler := &scheduler{a.config.NodeName, a.daemon, a.config.Log, time.Now}
	pause := scheduleEvery
	a.every(ctx, "gate-schedules", func() time.Duration { return pause }, changed, func(ctx context.Context) {
		committed, err := a.reconcileSchedules(ctx, scheduler, informer.GetStore())
		if pause = scheduleEvery; committed {
			pause = committedEvery
		}
		if err != nil && ctx.Err() == nil {
			a.config.Log.Warn("gate schedules", "error", err)
		}
	})
}

// Notify calls `changed` after each change of an object, except where a Node has only got a new report.
func Notify(informer cache.SharedIndexInformer, changed func()) cache.InformerSynced {
	return NotifyUnless(informer, changed, stream.OnlyReported)
}

// NotifyUnless calls `changed` after each change of an object, except an update that is `alike`.
func NotifyUnless(informer cache.SharedIndexInformer, changed func(), alike func(before, after any) bool) cache.InformerSynced {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if !alike(before, after) {
				changed()
			}
		},
	})
	if err != nil {
		panic(err) // only of an informer that has ended
	}
	return registration.HasSynced
}

// Follow starts an informer of one of KTSN's resources, which calls `changed` after each change. Its store has what `transform` makes of the
// objects; nil: the objects. `shares` is as for kube.Informer.
func Follow(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, transform cache.TransformFunc, shares *kube.Shares,
	changed func()) (cache.SharedIndexInformer, cache.InformerSynced) {
	informer := kube.Custom(client, resource, transform, shares)
	synced := Notify(informer, changed)
	go informer.Run(ctx.Done())
	return informer, synced
}

// reconcileSchedules looks once and answers in this Node's annotation. It says whether a rollout is on its way.
func (a *Agent) reconcileSchedules(ctx context.Context, scheduler *scheduler, store cache.Store) (committed bool, err error) {
	node, err := a.nodes.Get(a.config.NodeName)
	if err != nil {
		return false, err
	}
	all := a.nodes.List()
	nodes := make([]rollout.Node, 0, len(all))
	for _, one := range all {
		nodes = append(nodes, rollout.Node{Name: one.Name, Answers: rollout.ParseAnswers(one.Annotations[rollout.Annotation])})
	}
	var schedules []*v1alpha1.GateSchedule
	for _, object := range store.List() {
		schedule, err := v1alpha1.FromUnstructured(object)
		if err != nil {
			return false, err // what it is about is not known: what is there stays
		}
		schedules = append(schedules, schedule)
		committed = committed || schedule.Status.Phase == v1alpha1.PhaseCommitted
	}
	if a.answers == nil {
		a.answers = rollout.ParseAnswers(node.Annotations[rollout.Annotation])
	}
	a.mutex.Lock()
	uplink := a.file.Uplink
	a.mutex.Unlock()
	answers, err := scheduler.reconcile(ctx, schedules, uplink, a.answers, nodes)
	if err != nil {
		return committed, err
	}
	a.answers = answers
	if len(answers) == 0 && node.Annotations[rollout.Annotation] == "" {
		return committed, nil
	}
	text, err := answers.Annotation()
	if err != nil {
		return committed, err
	}
	return committed, a.annotate(ctx, node, rollout.Annotation, text)
}
