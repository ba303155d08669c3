// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// ManyStreams are s00, s01, …, each to a port of its own.
func manyStreams(t *testing.T, count int) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for index := range count {
		one := streamObject(t, fmt.Sprintf("s%02d", index))
		if err := unstructured.SetNestedField(one.Object, int64(5000+index), "spec", "data-frame-specification", "destination-port"); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, one)
	}
	return objects
}

// change a Stream as its user does, and wait until it is seen.
func (b *streamBench) change(name string, how func(*unstructured.Unstructured)) {
	b.t.Helper()
	resource := b.dynamic.Resource(v1alpha1.Streams).Namespace("plant")
	object, err := resource.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	object = object.DeepCopy()
	how(object)
	if _, err := resource.Update(context.Background(), object, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.seen(name)
}

// manyWait are Streams with a status, more than a look writes; all have another one to be written now.
func manyWait(t *testing.T, count int) (*streamBench, string) {
	t.Helper()
	objects := manyStreams(t, count)
	b := newStreamBench(t, objects...)
	for range (count + decisionsMax - 1) / decisionsMax {
		b.look()
		b.clock = b.clock.Add(time.Second)
	}
	for _, object := range objects {
		b.seen(object.(*unstructured.Unstructured).GetName())
	}
	b.report("a", "{}")
	return b, objects[count-1].(*unstructured.Unstructured).GetName()
}

// One look writes few; decisions go first, then the oldest counters, so that all have their turn.
func TestWritesAreFewAndAllHaveTheirTurn(t *testing.T) {
	objects := manyStreams(t, decisionsMax+20)
	b := newStreamBench(t, objects...)
	for round := range 2 {
		b.look()
		if count := b.writes(); count != min((round+1)*decisionsMax, len(objects)) {
			t.Fatalf("round %d: %d writes", round, count)
		}
		for _, object := range objects {
			b.seen(object.(*unstructured.Unstructured).GetName())
		}
	}
	for _, object := range objects {
		if name := object.(*unstructured.Unstructured).GetName(); b.status(name).StatusInfo.TalkerStatus != v1alpha1.TalkerReady {
			t.Errorf("%s: %+v", name, b.status(name))
		}
	}
}

// Streams whose write is refused each time, or whose decision changes each time, keep no other from its turn.
func TestWhoIsRefusedHoldsNobodyUp(t *testing.T) {
	const refused, all = 30, decisionsMax + 20
	objects := manyStreams(t, all)
	b := newStreamBench(t, objects...)
	b.dynamic.PrependReactor("update", "streams", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured).GetName()
		return name < fmt.Sprintf("s%02d", refused), nil, errors.New("too large")
	})
	for range 3 {
		_ = b.Streams(context.Background())
		b.clock = b.clock.Add(time.Second)
	}
	for index := range all {
		name := fmt.Sprintf("s%02d", index)
		if isWritten := b.status(name).StatusInfo.TalkerStatus != ""; isWritten != (index >= refused) {
			t.Errorf("%s: written %v", name, isWritten)
		}
	}
}

// Pods that come and go make more decisions than are written; a user that changed a Stream waits for none of them, though its status was
// written last.
func TestAVerdictGoesFirst(t *testing.T) {
	b, last := manyWait(t, 2*decisionsMax)
	b.change(last, func(object *unstructured.Unstructured) { object.SetGeneration(2) })
	before := b.writes()
	b.look()
	if got := b.status(last); got.ObservedGeneration != 2 || b.writes() != before+decisionsMax {
		t.Errorf("%d writes, generation %d", b.writes()-before, got.ObservedGeneration)
	}
}

// A verdict that was not taken once is tried again in the next look, though more older decisions wait than a look writes: after a conflict
// with another's write, and after a write that was refused.
func TestAVerdictThatWasNotTakenIsTriedAgain(t *testing.T) {
	for name, fault := range map[string]error{"conflict": nil, "refused": errors.New("etcdserver: request timed out")} {
		t.Run(name, func(t *testing.T) {
			b, last := manyWait(t, 4*decisionsMax)
			b.change(last, func(object *unstructured.Unstructured) { object.SetGeneration(2) })
			first := true
			b.dynamic.PrependReactor("update", "streams", func(action clienttesting.Action) (bool, runtime.Object, error) {
				object := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured)
				if object.GetName() != last || action.GetSubresource() != "status" || !first {
					return false, nil, nil
				}
				first = false
				if fault != nil {
					return true, nil, fault
				}
				// Another client's label comes between what was decided on and the write.
				other := b.tracked(last)
				other.SetLabels(map[string]string{"by": "another"})
				other.SetResourceVersion("100")
				if err := b.dynamic.Tracker().Update(v1alpha1.Streams, other, "plant"); err != nil {
					return true, nil, err
				}
				return false, nil, nil
			})
			_ = b.Streams(context.Background())
			if first || b.status(last).ObservedGeneration != 1 {
				t.Fatalf("tried %v, generation %d", !first, b.status(last).ObservedGeneration)
			}
			b.seen(last)
			b.clock = b.clock.Add(time.Second)
			b.look()
			if got := b.status(last); got.ObservedGeneration != 2 {
				t.Errorf("generation %d", got.ObservedGeneration)
			}
		})
	}
}

// tracked is a copy of what the API server has.
func (b *streamBench) tracked(name string) *unstructured.Unstructured {
	object, err := b.dynamic.Tracker().Get(v1alpha1.Streams, "plant", name)
	if err != nil {
		b.t.Fatal(err)
	}
	return object.(*unstructured.Unstructured).DeepCopy()
}

// Until the informer has what was written nothing is written on the old version: each such write would be refused and take the place of
// another. It is written again where the informer does not come by.
func TestAnOldVersionIsNotWrittenTwice(t *testing.T) {
	b := newStreamBench(t, streamObject(t, "s"))
	fresh := b.work.store
	b.work.store = frozen(t, fresh)
	for range 3 {
		b.dirty()
		b.look()
		b.clock = b.clock.Add(time.Second)
	}
	if count := b.writes(); count != 1 {
		t.Errorf("%d writes on one version", count)
	}
	b.clock = b.clock.Add(countersEvery)
	b.look()
	if count := b.writes(); count != 2 {
		t.Errorf("%d writes, expected another after a while", count)
	}
	b.work.store = fresh
	b.seen("s")
	b.report("a", "{}")
	b.look()
	if got := b.status("s"); got.Nodes[0].State != v1alpha1.StreamWaiting {
		t.Errorf("the newer version is not written: %+v", got)
	}
}

// Verdicts that are refused each time take only some places of a look: other decisions have theirs, and each of the refused its turn.
func TestRefusedVerdictsLeavePlacesToOthers(t *testing.T) {
	const refused, all = 60, 100
	b, _ := manyWait(t, all)
	tries := map[string]int{}
	var mutex sync.Mutex
	isRefused := func(name string) bool { return name < fmt.Sprintf("s%02d", refused) }
	for index := range refused {
		b.change(fmt.Sprintf("s%02d", index), func(object *unstructured.Unstructured) { object.SetGeneration(2) })
	}
	b.dynamic.PrependReactor("update", "streams", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.UpdateAction).GetObject().(*unstructured.Unstructured).GetName()
		mutex.Lock()
		defer mutex.Unlock()
		tries[name]++
		return isRefused(name), nil, errors.New("too large")
	})
	// Two looks try all that are new; the 40 others then need two looks beside ten that are tried again.
	for range 4 {
		_ = b.Streams(context.Background())
		b.clock = b.clock.Add(time.Second)
	}
	for index := range all {
		name := fmt.Sprintf("s%02d", index)
		if isWritten := b.status(name).Nodes[0].State == v1alpha1.StreamWaiting; isWritten == isRefused(name) || tries[name] == 0 {
			t.Errorf("%s: written %v, %d tries", name, isWritten, tries[name])
		}
	}
	for range 2 * refused / againMax {
		_ = b.Streams(context.Background())
		b.clock = b.clock.Add(time.Second)
	}
	for index := range refused {
		if name := fmt.Sprintf("s%02d", index); tries[name] < 2 {
			t.Errorf("%s: %d tries", name, tries[name])
		}
	}
}
