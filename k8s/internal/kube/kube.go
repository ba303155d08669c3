// SPDX-License-Identifier: Apache-2.0

// Package kube is what the node agent asks of Kubernetes' own resources, with the types that it reads and no others.
//
// In: how the API server is reached. Out: an API. client-go's own set of clients has all types of Kubernetes, which makes the agent twice
// as large.
package kube

import (
	"context"
	"net/http"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

// API is what the agent asks.
type API interface {
	Reviews
	Discovery
	record.EventSink
	// PatchNode changes a Node by a merge patch.
	PatchNode(ctx context.Context, name string, patch []byte) error
	// Source lists and watches nodes, pods or networkpolicies of all namespaces; of those with these fields alone, where given.
	Source(resource string, selector fields.Selector) cache.ListerWatcher
}

// Reviews are questions about users.
type Reviews interface {
	ReviewToken(ctx context.Context, review *authentication.TokenReview) (*authentication.TokenReview, error)
	ReviewAccess(ctx context.Context, review *authorization.SubjectAccessReview) (*authorization.SubjectAccessReview, error)
}

// Discovery says which kinds the API server has.
type Discovery interface {
	ServerGroups() (*metav1.APIGroupList, error)
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// Scheme has the types of this package.
var Scheme = runtime.NewScheme()

func init() {
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networking.AddToScheme, authentication.AddToScheme, authorization.AddToScheme} {
		utilruntime.Must(add(Scheme))
	}
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
}

// clients is the API by HTTP: one client for each group.
type clients struct {
	core, networking, authentication, authorization rest.Interface
}

// New makes clients that share one limit of questions a second, and the connections.
func New(config *rest.Config) (API, error) {
	shared := rest.CopyConfig(config)
	if shared.RateLimiter == nil {
		// client-go's own limits, for all groups together.
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(rest.DefaultQPS, rest.DefaultBurst)
	}
	connections, err := rest.HTTPClientFor(shared)
	if err != nil {
		return nil, err
	}
	c := &clients{}
	for version, into := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.core, networking.SchemeGroupVersion: &c.networking,
		authentication.SchemeGroupVersion: &c.authentication, authorization.SchemeGroupVersion: &c.authorization,
	} {
		if *into, err = group(shared, connections, version); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func group(shared *rest.Config, connections *http.Client, version schema.GroupVersion) (rest.Interface, error) {
	config := rest.CopyConfig(shared)
	config.GroupVersion, config.APIPath = &version, "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(Scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, connections)
}

func (c *clients) PatchNode(ctx context.Context, name string, patch []byte) error {
	return c.core.Patch(types.MergePatchType).Resource("nodes").Name(name).Body(patch).Do(ctx).Error()
}

func (c *clients) Source(resource string, selector fields.Selector) cache.ListerWatcher {
	client := c.core
	if resource == "networkpolicies" {
		client = c.networking
	}
	return cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector)
}

func (c *clients) ReviewToken(ctx context.Context, review *authentication.TokenReview) (*authentication.TokenReview, error) {
	answer := &authentication.TokenReview{}
	return answer, c.authentication.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(answer)
}

func (c *clients) ReviewAccess(ctx context.Context, review *authorization.SubjectAccessReview) (*authorization.SubjectAccessReview, error) {
	answer := &authorization.SubjectAccessReview{}
	return answer, c.authorization.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(answer)
}

func (c *clients) ServerGroups() (*metav1.APIGroupList, error) {
	answer := &metav1.APIGroupList{}
	return answer, c.core.Get().AbsPath("/apis").Do(context.Background()).Into(answer)
}

func (c *clients) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	answer := &metav1.APIResourceList{}
	return answer, c.core.Get().AbsPath("/apis", groupVersion).Do(context.Background()).Into(answer)
}

// Create, Update and Patch write events.
func (c *clients) Create(event *corev1.Event) (*corev1.Event, error) {
	answer := &corev1.Event{}
	return answer, c.core.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(context.Background()).Into(answer)
}

func (c *clients) Update(event *corev1.Event) (*corev1.Event, error) {
	answer := &corev1.Event{}
	return answer, c.core.Put().Namespace(event.Namespace).Resource("events").Name(event.Name).Body(event).Do(context.Background()).Into(answer)
}

func (c *clients) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	answer := &corev1.Event{}
	return answer, c.core.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).
		Body(patch).Do(context.Background()).Into(answer)
}

// Informer follows what a source has, as objects of one type.
func Informer(source cache.ListerWatcher, of runtime.Object, transform cache.TransformFunc) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(source, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := informer.SetTransform(transform); err != nil {
		panic(err) // only of an informer that has started
	}
	return informer
}

// Custom follows all objects of one kind, of every namespace. Its store has what `transform` makes of the objects; nil: the objects.
func Custom(client dynamic.Interface, kind schema.GroupVersionResource, transform cache.TransformFunc) cache.SharedIndexInformer {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(kind).List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(kind).Watch(ctx, options)
		},
	}
	return Informer(source, &unstructured.Unstructured{}, transform)
}
