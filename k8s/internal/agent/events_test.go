// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/podwatch"
)

// An event waits for an API server that is away, in its turn; one that is refused holds up no other.
func TestEventsAreToldOnce(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil)
	b.pods.Store = cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, name := range []string{"talker", strings.Repeat("x", 229) + "." + strings.Repeat("y", 23)} {
		pod := &kinds.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "u"}}
		if err := b.pods.Store.Add(pod); err != nil {
			t.Fatal(err)
		}
		b.report(podwatch.Finding{Holder: podwatch.Holder{Namespace: "a", Pod: name, Container: "main"}, Reason: "NotLoaded", Message: "why"})
	}
	b.report(podwatch.Finding{Holder: podwatch.Holder{Namespace: "a", Pod: "gone"}})
	var answer error
	asked := 0
	b.kube.PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) {
		asked++
		return answer != nil, nil, answer
	})
	ctx := context.Background()
	answer = errors.New("connection refused")
	if b.tell(ctx); asked != 1 || len(b.untold) != 2 {
		t.Fatalf("away: asked %d times, %d wait", asked, len(b.untold))
	}
	answer = nil
	if b.tell(ctx); len(b.untold) != 0 {
		t.Fatalf("%d wait", len(b.untold))
	}
	found, err := b.kube.CoreV1().Events("a").List(ctx, metav1.ListOptions{})
	if err != nil || len(found.Items) != 2 {
		t.Fatalf("%v %v", found, err)
	}
	for _, event := range found.Items {
		if len(validation.IsDNS1123Subdomain(event.Name)) != 0 || event.Reason != "NotLoaded" || event.Message != "why" || event.Type != corev1.EventTypeWarning || event.Count != 1 ||
			event.InvolvedObject.Kind != "Pod" || event.InvolvedObject.UID != "u" || event.InvolvedObject.FieldPath != "spec.containers{main}" ||
			event.Source.Component != "ktsn-node-agent" || event.FirstTimestamp.IsZero() {
			t.Errorf("%+v", event)
		}
	}
	answer = apierrors.NewForbidden(corev1.Resource("events"), "e", errors.New("the namespace ends"))
	b.report(podwatch.Finding{Holder: podwatch.Holder{Namespace: "a", Pod: "talker"}})
	if b.tell(ctx); len(b.untold) != 0 {
		t.Error("a refused event waits")
	}
	answer = errors.New("connection refused")
	for range untoldMax + 5 {
		b.report(podwatch.Finding{Holder: podwatch.Holder{Namespace: "a", Pod: "talker"}})
	}
	if b.tell(ctx); len(b.untold) != untoldMax {
		t.Errorf("%d wait", len(b.untold))
	}
}
