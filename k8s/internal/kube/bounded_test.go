// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

func policy(namespace, name, filler string) *kinds.NetworkPolicy {
	return &kinds.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: map[string]string{"filler": filler}, Labels: map[string]string{"x": filler},
	}}
}

// trim leaves the labels, so that objects can be long.
func trim(object runtime.Object) { object.(*kinds.NetworkPolicy).Annotations = nil }

// follow starts an informer of a source with bounds of 3 objects and 2,000 octets.
func follow(t *testing.T, source cache.ListerWatcher) (cache.SharedIndexInformer, *kube.Shares, func() []string) {
	t.Helper()
	var mutex sync.Mutex
	var said []string
	shares := kube.NewShares(kube.Bound{Objects: 3, Octets: 2000}, trim, func(namespace, reason string) {
		mutex.Lock()
		defer mutex.Unlock()
		said = append(said, namespace+": "+reason)
	})
	informer := kube.Informer(source, &kinds.NetworkPolicy{}, nil, shares)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("not synced")
	}
	return informer, shares, func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return said
	}
}

func keys(informer cache.SharedIndexInformer) string {
	return strings.Join(slices.Sorted(slices.Values(informer.GetStore().ListKeys())), " ")
}

// A namespace beyond its bound is named, whether by number or octets, at the list or later; the others have everything.
func TestANamespaceBeyondItsBound(t *testing.T) {
	watcher := watch.NewFake()
	objects := []kinds.NetworkPolicy{*policy("calm", "a", ""), *policy("long", "a", strings.Repeat("x", 2000))}
	for _, name := range []string{"a", "b", "c", "d"} {
		objects = append(objects, *policy("many", name, ""))
	}
	informer, shares, said := follow(t, &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &kinds.List[kinds.NetworkPolicy]{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: objects}, nil
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil {
				t.Error("asked for all objects at once, in no pages")
			}
			return watcher, nil
		},
	})
	over := func(namespaces ...string) bool {
		found := shares.Over()
		for _, namespace := range namespaces {
			if found[namespace] == "" {
				return false
			}
		}
		return len(found) == len(namespaces)
	}
	if !over("long", "many") || keys(informer) != "calm/a many/a many/b many/c" {
		t.Errorf("%v, %s", shares.Over(), keys(informer))
	}
	for _, one := range informer.GetStore().List() {
		if one.(*kinds.NetworkPolicy).Annotations != nil {
			t.Errorf("not trimmed: %v", one)
		}
	}
	watcher.Add(policy("late", "a", "y"))
	watcher.Modify(policy("late", "a", strings.Repeat("y", 2000)))
	eventually.Holds(t, "late is not over", func() bool { return over("long", "many", "late") })
	eventually.Holds(t, "late/a is kept", func() bool { return keys(informer) == "calm/a many/a many/b many/c" })
	watcher.Add(policy("calm", "b", "z"))
	watcher.Modify(policy("many", "d", "")) // left out stays out
	watcher.Delete(policy("many", "a", ""))
	eventually.Holds(t, "calm/b is missing", func() bool { return keys(informer) == "calm/a calm/b many/b many/c" })
	// A namespace that is empty is as if it had never been.
	watcher.Delete(policy("late", "a", ""))
	eventually.Holds(t, "late is over still", func() bool { return over("long", "many") })
	if got := fmt.Sprint(said()); strings.Count(got, "many:") != 1 || !strings.Contains(got, "long: more than 2000 octets") || !strings.Contains(got, "many: more than 3 objects") {
		t.Error(got)
	}
}

// Pages too long are asked for again with fewer objects, and never read to their end.
func TestListsComeInPagesOfBoundedLength(t *testing.T) {
	const count, octets = 200, 250_000
	var mutex sync.Mutex
	var limits []int
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("watch") != "" {
			<-r.Context().Done()
			return
		}
		limit, _ := strconv.Atoi(query.Get("limit"))
		from, _ := strconv.Atoi(query.Get("continue"))
		mutex.Lock()
		limits = append(limits, limit)
		mutex.Unlock()
		if limit == 0 {
			limit = count
		}
		writePage(w, "NetworkPolicyList", "networking.k8s.io/v1", from, min(from+limit, count), count, octets)
	}))
	t.Cleanup(web.Close) // after the informer has ended
	config := &rest.Config{Host: web.URL, QPS: 1000, Burst: 1000}
	config.Wrap(kube.CapLists)
	api, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	informer, shares, _ := follow(t, api.Source("networkpolicies", fields.Everything()))
	if len(informer.GetStore().ListKeys()) != count || len(shares.Over()) != 0 {
		t.Errorf("%d, %v", len(informer.GetStore().ListKeys()), shares.Over())
	}
	mutex.Lock()
	defer mutex.Unlock()
	for _, limit := range limits {
		if limit == 0 || limit > 500 {
			t.Errorf("limits: %v", limits)
		}
	}
	if len(limits) < count*octets/(8<<20) {
		t.Errorf("%d pages", len(limits))
	}
}

// writePage writes objects of these numbers, each in a namespace of its own, with a long annotation.
func writePage(w http.ResponseWriter, kind, version string, from, to, count, octets int) {
	w.Header().Set("Content-Type", "application/json")
	next := ""
	if to < count {
		next = strconv.Itoa(to)
	}
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1","continue":%q},"items":[`, kind, version, next)
	filler := strings.Repeat("x", octets)
	for number := from; number < to; number++ {
		if number > from {
			fmt.Fprint(w, ",")
		}
		fmt.Fprintf(w, `{"metadata":{"namespace":"n%d","name":"a","annotations":{"filler":"%s"}},"spec":{"podSelector":{}}}`, number, filler)
	}
	fmt.Fprint(w, "]}")
}
