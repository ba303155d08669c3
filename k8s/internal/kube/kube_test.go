// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// server answers as an API server does, and keeps what it was asked.
type server struct {
	mutex sync.Mutex
	asked []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mutex.Lock()
	s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("fieldSelector")))
	s.mutex.Unlock()
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{}
	switch path := r.URL.Path; {
	case r.URL.Query().Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	case path == "/apis":
		answer = map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{map[string]any{"name": "cilium.io"}}}
	case path == "/apis/cilium.io/v2":
		answer = map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "cilium.io/v2", "resources": []any{map[string]any{"name": "x"}}}
	case path == "/api/v1/pods":
		answer = map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "1"},
			"items": []any{map[string]any{"metadata": map[string]any{"name": "p", "namespace": "a"}}}}
	case path == "/apis/networking.k8s.io/v1/networkpolicies":
		answer = map[string]any{"kind": "NetworkPolicyList", "apiVersion": "networking.k8s.io/v1", "metadata": map[string]any{"resourceVersion": "1"},
			"items": []any{map[string]any{"metadata": map[string]any{"name": "n", "namespace": "a"}}}}
	case path == "/api/v1/nodes/none":
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "no such node", "code": 404}
	default:
		if err := json.Unmarshal(body, &answer); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if strings.HasSuffix(path, "reviews") {
			answer["status"] = map[string]any{"authenticated": true, "allowed": true}
		}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func TestTheAPIServerIsAskedAsItsPathsSay(t *testing.T) {
	s := &server{}
	web := httptest.NewServer(s)
	defer web.Close()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	api, err := kube.New(&rest.Config{Host: web.URL, QPS: 100, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	if token, err := api.ReviewToken(ctx, &kinds.TokenReview{}); err != nil || !token.Status.Authenticated {
		t.Errorf("%+v %v", token, err)
	}
	if access, err := api.ReviewAccess(ctx, &kinds.SubjectAccessReview{}); err != nil || !access.Status.Allowed {
		t.Errorf("%+v %v", access, err)
	}
	if err := api.PatchNode(ctx, "kn1", []byte(`{"metadata":{"annotations":{"ktsn.io/vtep":"x"}}}`)); err != nil {
		t.Error(err)
	}
	if err := api.PatchNode(ctx, "none", []byte(`{}`)); err == nil || !strings.Contains(err.Error(), "no such node") {
		t.Errorf("%v", err)
	}
	if err := api.Tell(ctx, &kinds.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "e"}}); err != nil {
		t.Error(err)
	}
	if groups, err := api.ServerGroups(); err != nil || groups.Groups[0].Name != "cilium.io" {
		t.Errorf("%+v %v", groups, err)
	}
	if resources, err := api.ServerResourcesForGroupVersion("cilium.io/v2"); err != nil || resources.APIResources[0].Name != "x" {
		t.Errorf("%+v %v", resources, err)
	}
	pods := kube.Informer(api.Source("pods", fields.OneTermEqualSelector("spec.nodeName", "kn1")), &kinds.Pod{}, nil, nil)
	policies := kube.Informer(api.Source("networkpolicies", fields.Everything()), &kinds.NetworkPolicy{}, nil, nil)
	go pods.Run(ctx.Done())
	go policies.Run(ctx.Done())
	eventually.Holds(t, "lists", func() bool { return pods.HasSynced() && policies.HasSynced() })
	for name, informer := range map[string]interface{ ListKeys() []string }{"a/p": pods.GetStore(), "a/n": policies.GetStore()} {
		if keys := informer.ListKeys(); !slices.Equal(keys, []string{name}) {
			t.Errorf("%v", keys)
		}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, want := range []string{
		"POST /apis/authentication.k8s.io/v1/tokenreviews", "POST /apis/authorization.k8s.io/v1/subjectaccessreviews", "PATCH /api/v1/nodes/kn1",
		"POST /api/v1/namespaces/a/events",
		"GET /api/v1/pods spec.nodeName=kn1", "GET /apis/networking.k8s.io/v1/networkpolicies",
	} {
		if !slices.Contains(s.asked, want) {
			t.Errorf("not asked: %s; %q", want, s.asked)
		}
	}
}
