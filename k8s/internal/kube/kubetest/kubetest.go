// SPDX-License-Identifier: Apache-2.0

// Package kubetest gives tests an API out of client-go's fake clients. In: those. Out: the API. No program links it.
package kubetest

import (
	"context"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/kube"
)

type api struct {
	typedcore.EventSinkImpl
	clients kubernetes.Interface
}

// Of is the API that asks these clients.
func Of(clients kubernetes.Interface) kube.API {
	return &api{typedcore.EventSinkImpl{Interface: clients.CoreV1().Events("")}, clients}
}

func (a *api) PatchNode(ctx context.Context, name string, patch []byte) error {
	_, err := a.clients.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (a *api) ReviewToken(ctx context.Context, review *authentication.TokenReview) (*authentication.TokenReview, error) {
	return a.clients.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
}

func (a *api) ReviewAccess(ctx context.Context, review *authorization.SubjectAccessReview) (*authorization.SubjectAccessReview, error) {
	return a.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
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
				return core.Nodes().List(ctx, with(options))
			case "pods":
				return core.Pods("").List(ctx, with(options))
			}
			return policies.List(ctx, with(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			switch resource {
			case "nodes":
				return core.Nodes().Watch(ctx, with(options))
			case "pods":
				return core.Pods("").Watch(ctx, with(options))
			}
			return policies.Watch(ctx, with(options))
		},
	}
}
