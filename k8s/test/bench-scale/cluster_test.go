// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// The churn's end gives up no change on its way: each Stream that counts as changed was changed, or it would have no verdict for ever.
func TestTheEndOfTheChurnGivesUpNoChange(t *testing.T) {
	var patched atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPatch {
			http.Error(w, "{}", http.StatusNotFound)
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
			patched.Add(1)
			fmt.Fprint(w, `{"apiVersion":"ktsn.io/v1alpha1","kind":"Stream","metadata":{"name":"s","namespace":"plant"}}`)
		case <-r.Context().Done(): // given up
		}
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, QPS: -1}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		size: size{nodes: 2000, podsEach: 1, streamsEach: 5, churn: 250 * time.Millisecond, podsPerSecond: 1, changesPerSecond: 100},
		kube: kube, custom: custom, asked: map[string]time.Time{}, counted: map[string]time.Duration{},
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.churn)
	defer cancel()
	if err := c.change(ctx); err != nil {
		t.Error(err)
	}
	if asked := len(c.asked); asked < 2 || int64(asked) != patched.Load() {
		t.Errorf("%d Streams count as changed, %d were", asked, patched.Load())
	}
	// A change that is refused is none.
	over, stop := context.WithCancel(context.Background())
	stop()
	if err := c.changeStream(over, 0, 0); err == nil || len(c.asked) != int(patched.Load()) {
		t.Errorf("%v: %d Streams count as changed, %d were", err, len(c.asked), patched.Load())
	}
}

// The first verdict about the changed generation counts, and nothing else.
func TestTheFirstVerdictIsNoted(t *testing.T) {
	began := time.Now()
	c := &cluster{asked: map[string]time.Time{"plant/s": began}, counted: map[string]time.Duration{}}
	seen := func(generation, observed int64, applied string, after time.Duration) {
		one := &v1alpha1.Stream{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "s", Generation: generation}}
		one.Status.ObservedGeneration, one.Status.NodesApplied = observed, applied
		c.note(one, began.Add(after))
	}
	seen(1, 1, "1/1", time.Second)
	seen(2, 1, "1/1", 2*time.Second)
	seen(2, 2, "0/1", 3*time.Second)
	if len(c.counted) != 0 {
		t.Errorf("%v", c.counted)
	}
	seen(2, 2, "1/1", 4*time.Second)
	seen(2, 2, "1/1", 5*time.Second)
	if c.counted["plant/s"] != 4*time.Second {
		t.Errorf("%v", c.counted)
	}
}
