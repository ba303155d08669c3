// SPDX-License-Identifier: Apache-2.0

// Package kube is what the node agent asks of Kubernetes' own resources, with the types that it reads and no others.
//
// In: how the API server is reached. Out: an API. client-go's own set of clients has all types of Kubernetes, which makes the agent twice
// as large; its recorder of events and its listers have those of k8s.io/api.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
)

// API is what the agent asks.
type API interface {
	Reviews
	Discovery
	// Tell makes an Event.
	Tell(ctx context.Context, event *kinds.Event) error
	// PatchNode changes a Node by a merge patch.
	PatchNode(ctx context.Context, name string, patch []byte) error
	// Source lists and watches nodes, pods or networkpolicies of all namespaces; of those with these fields alone, where given.
	Source(resource string, selector fields.Selector) cache.ListerWatcher
}

// Reviews are questions about users.
type Reviews interface {
	ReviewToken(ctx context.Context, review *kinds.TokenReview) (*kinds.TokenReview, error)
	ReviewAccess(ctx context.Context, review *kinds.SubjectAccessReview) (*kinds.SubjectAccessReview, error)
}

// Discovery says which kinds the API server has.
type Discovery interface {
	ServerGroups() (*metav1.APIGroupList, error)
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// The groups that are asked, each in version v1.
var (
	core           = schema.GroupVersion{Version: "v1"}
	networking     = schema.GroupVersion{Group: "networking.k8s.io", Version: "v1"}
	authentication = schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"}
	authorization  = schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}
)

// scheme has the kinds that are read and written.
var scheme = runtime.NewScheme()

func init() {
	for kind, object := range map[schema.GroupVersionKind]runtime.Object{
		core.WithKind("Node"): &kinds.Node{}, core.WithKind("NodeList"): &kinds.List[kinds.Node]{},
		core.WithKind("Pod"): &kinds.Pod{}, core.WithKind("PodList"): &kinds.List[kinds.Pod]{},
		core.WithKind("Event"):               &kinds.Event{},
		networking.WithKind("NetworkPolicy"): &kinds.NetworkPolicy{}, networking.WithKind("NetworkPolicyList"): &kinds.List[kinds.NetworkPolicy]{},
		authentication.WithKind("TokenReview"):        &kinds.TokenReview{},
		authorization.WithKind("SubjectAccessReview"): &kinds.SubjectAccessReview{},
	} {
		scheme.AddKnownTypeWithName(kind, object)
	}
	for _, version := range []schema.GroupVersion{core, networking, authentication, authorization} {
		metav1.AddToGroupVersion(scheme, version)
	}
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
		core: &c.core, networking: &c.networking, authentication: &c.authentication, authorization: &c.authorization,
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
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
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

func (c *clients) ReviewToken(ctx context.Context, review *kinds.TokenReview) (*kinds.TokenReview, error) {
	answer := &kinds.TokenReview{}
	return answer, c.authentication.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(answer)
}

func (c *clients) ReviewAccess(ctx context.Context, review *kinds.SubjectAccessReview) (*kinds.SubjectAccessReview, error) {
	answer := &kinds.SubjectAccessReview{}
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

func (c *clients) Tell(ctx context.Context, event *kinds.Event) error {
	return c.core.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}

// listed is a source that is listed and then watched. The other way (WatchListClient, on since client-go 0.35), a watch that begins with all
// objects, knows no pages: no bound would hold.
type listed struct {
	cache.ListerWatcher
	cache.ListerWatcherWithContext
}

// IsWatchListSemanticsUnSupported is asked by client-go's reflector.
func (listed) IsWatchListSemanticsUnSupported() bool { return true }

// Informer follows what a source has, as objects of one type. With `shares` it keeps no more of each namespace than their bound; nil: everything,
// for objects that no user of a namespace can write.
func Informer(source cache.ListerWatcher, of runtime.Object, transform cache.TransformFunc, shares *Shares) cache.SharedIndexInformer {
	if shares != nil {
		source = boundedSource(source, shares)
	}
	source = listed{source, cache.ToListerWatcherWithContext(source)}
	informer := cache.NewSharedIndexInformer(source, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := informer.SetTransform(transform); err != nil {
		panic(err) // only of an informer that has started
	}
	return informer
}

// Custom follows all objects of one kind, of every namespace. Its store has what `transform` makes of the objects; nil: the objects. `shares` is as
// for Informer.
func Custom(client dynamic.Interface, kind schema.GroupVersionResource, transform cache.TransformFunc, shares *Shares) cache.SharedIndexInformer {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(kind).List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(kind).Watch(ctx, options)
		},
	}
	return Informer(source, &unstructured.Unstructured{}, transform, shares)
}

// Kept are the objects that an informer keeps.
type Kept[T any] struct{ Store cache.Store }

// List returns all of them.
func (k Kept[T]) List() []*T {
	var found []*T
	for _, object := range k.Store.List() {
		if one, is := object.(*T); is {
			found = append(found, one)
		}
	}
	return found
}

// Get returns the one that is called NAMESPACE/NAME, or NAME where it has no namespace.
func (k Kept[T]) Get(key string) (*T, error) {
	object, isThere, err := k.Store.GetByKey(key)
	one, is := object.(*T)
	if err == nil && (!isThere || !is) {
		err = fmt.Errorf("the API server has listed no %s %s", strings.TrimPrefix(fmt.Sprintf("%T", *new(T)), "kinds."), key)
	}
	return one, err
}
