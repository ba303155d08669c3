// SPDX-License-Identifier: Apache-2.0

// Package kubetest gives tests an API out of client-go's fake clients. In: those. Out: the API. No program links it.
package kubetest

import (
	"context"
	"encoding/json"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// A fake client's watch holds so many events for a reader that is behind; it panics at one more.
func init() { watch.DefaultChanSize = 10_000 }

type api struct{ clients kubernetes.Interface }

// Of is the API that asks these clients.
func Of(clients kubernetes.Interface) kube.API {
	return &api{clients}
}

func (a *api) PatchNode(ctx context.Context, name string, patch []byte) error {
	_, err := a.clients.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (a *api) ReviewToken(ctx context.Context, review *kinds.TokenReview) (*kinds.TokenReview, error) {
	answer, err := a.clients.AuthenticationV1().TokenReviews().Create(ctx, As[authentication.TokenReview](review), metav1.CreateOptions{})
	return As[kinds.TokenReview](answer), err
}

func (a *api) ReviewAccess(ctx context.Context, review *kinds.SubjectAccessReview) (*kinds.SubjectAccessReview, error) {
	answer, err := a.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, As[authorization.SubjectAccessReview](review), metav1.CreateOptions{})
	return As[kinds.SubjectAccessReview](answer), err
}

func (a *api) Tell(ctx context.Context, event *kinds.Event) error {
	_, err := a.clients.CoreV1().Events(event.Namespace).Create(ctx, As[corev1.Event](event), metav1.CreateOptions{})
	return err
}

// As reads a value as another type with the same JSON: Kubernetes' own and the agent's.
func As[T any](from any) *T {
	to := new(T)
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		panic(err)
	}
	return to
}

func (a *api) ServerGroups() (*metav1.APIGroupList, error) {
	return a.clients.Discovery().ServerGroups()
}

func (a *api) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	return a.clients.Discovery().ServerResourcesForGroupVersion(groupVersion)
}

func (a *api) Source(resource string, selector fields.Selector) cache.ListerWatcher {
	with := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = selector.String()
		return options
	}
	core, policies := a.clients.CoreV1(), a.clients.NetworkingV1().NetworkPolicies("")
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			switch resource {
			case "nodes":
				return as[kinds.List[kinds.Node]](core.Nodes().List(ctx, with(options)))
			case "pods":
				return as[kinds.List[kinds.Pod]](core.Pods("").List(ctx, with(options)))
			}
			return as[kinds.List[kinds.NetworkPolicy]](policies.List(ctx, with(options)))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			switch resource {
			case "nodes":
				return watched[kinds.Node](core.Nodes().Watch(ctx, with(options)))
			case "pods":
				return watched[kinds.Pod](core.Pods("").Watch(ctx, with(options)))
			}
			return watched[kinds.NetworkPolicy](policies.Watch(ctx, with(options)))
		},
	}
}

// object is a type whose pointer is an object.
type object[T any] interface {
	*T
	runtime.Object
}

func as[T any, P object[T], F any](from *F, err error) (runtime.Object, error) {
	return P(As[T](from)), err
}

func watched[T any, P object[T]](from watch.Interface, err error) (watch.Interface, error) {
	if err != nil {
		return nil, err
	}
	return watch.Filter(from, func(event watch.Event) (watch.Event, bool) {
		if event.Type != watch.Error && event.Type != watch.Bookmark {
			event.Object = P(As[T](event.Object))
		}
		return event, true
	}), nil
}
