// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
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
	objects := manyStreams(t, 2*decisionsMax)
	b := newStreamBench(t, objects...)
	for range 2 {
		b.look()
		b.clock = b.clock.Add(time.Second)
	}
	last := fmt.Sprintf("s%02d", len(objects)-1)
	for _, object := range objects {
		b.seen(object.(*unstructured.Unstructured).GetName())
	}
	b.report("a", "{}") // every Stream waits now
	resource := b.dynamic.Resource(v1alpha1.Streams).Namespace("plant")
	object, err := resource.Get(context.Background(), last, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object = object.DeepCopy()
	object.SetGeneration(2)
	if _, err := resource.Update(context.Background(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change is seen", func() bool {
		seen, _, _ := b.work.store.GetByKey("plant/" + last)
		one, err := v1alpha1.StreamFrom(seen)
		return err == nil && one.Generation == 2
	})
	before := b.writes()
	b.look()
	if got := b.status(last); got.ObservedGeneration != 2 || b.writes() != before+decisionsMax {
		t.Errorf("%d writes, generation %d", b.writes()-before, got.ObservedGeneration)
	}
}
