// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

// kindsEvery is how often it is seen which kinds of policies the cluster has: they come with a policy engine's installation.
const kindsEvery = 30 * time.Second

// A kind that the API server does not name any more is given up after goneLooks looks at which it could not be listed, either: a group
// may be missing for a moment. existsMax is how long such a list may take.
const (
	goneLooks = 3
	existsMax = 5 * time.Second
)

// otherKinds are kinds of policies that KTSN cannot read, by group. Each object of them counts as a policy that selects every pod.
var otherKinds = map[string][]string{
	"policy.networking.k8s.io": {"adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies"},
	"crd.projectcalico.org":    {"networkpolicies", "globalnetworkpolicies"},
	"cilium.io":                {"ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies"},
	"crd.antrea.io":            {"networkpolicies", "clusternetworkpolicies"},
}

// otherPolicies follows the policies of other kinds than NetworkPolicy.
type otherPolicies struct {
	mutex    sync.Mutex
	followed map[schema.GroupVersionResource]*otherKind
	unread   error
}

// otherKind is one kind of policies that the cluster has.
type otherKind struct {
	informer cache.SharedIndexInformer
	synced   cache.InformerSynced
	stop     context.CancelFunc
	failed   error // nil: it is listed and watched
	isOld    bool  // the API server did not name it at the last look
	missed   int   // looks in a row at which it was not found
}

func newOtherPolicies() *otherPolicies {
	return &otherPolicies{
		followed: map[schema.GroupVersionResource]*otherKind{},
		unread:   errors.New("which kinds of policies the cluster has was not seen yet"),
	}
}

// run follows what there is until the context ends.
func (o *otherPolicies) run(ctx context.Context, known kube.Discovery, client dynamic.Interface, log *slog.Logger, changed func()) {
	every(ctx, always(kindsEvery), nil, func(ctx context.Context) {
		kinds, err := findKinds(known)
		if err != nil {
			log.Warn("kinds of policies", "error", err)
			return // what is followed stays
		}
		o.follow(ctx, kinds, client, log, changed)
		changed()
	})
}

// findKinds asks which of the known kinds the cluster has.
func findKinds(known kube.Discovery) ([]schema.GroupVersionResource, error) {
	groups, err := known.ServerGroups()
	if err != nil {
		return nil, err
	}
	var found []schema.GroupVersionResource
	for _, group := range groups.Groups {
		names, isKnown := otherKinds[group.Name]
		if !isKnown {
			continue
		}
		// A kind may be there in one version only.
		for _, version := range group.Versions {
			list, err := known.ServerResourcesForGroupVersion(version.GroupVersion)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", version.GroupVersion, err)
			}
			for _, resource := range list.APIResources {
				isFound := slices.ContainsFunc(found, func(one schema.GroupVersionResource) bool {
					return one.Group == group.Name && one.Resource == resource.Name
				})
				if slices.Contains(names, resource.Name) && !isFound {
					found = append(found, schema.GroupVersionResource{Group: group.Name, Version: version.Version, Resource: resource.Name})
				}
			}
		}
	}
	return found, nil
}

// follow begins with new kinds. One that is not named any more ends when its successor, another version, was listed, or when it is gone.
func (o *otherPolicies) follow(ctx context.Context, kinds []schema.GroupVersionResource, client dynamic.Interface, log *slog.Logger, changed func()) {
	missing := o.missing(ctx, kinds, client)
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.unread = nil
	for kind, one := range o.followed {
		one.isOld = !slices.Contains(kinds, kind)
		if one.missed++; !one.isOld || !slices.Contains(missing, kind) {
			one.missed = 0
		}
	}
	for _, kind := range kinds {
		if o.followed[kind] == nil {
			log.Info("policies of a kind that KTSN does not read: each counts as one about every pod", "kind", kind.GroupResource().String())
			o.followed[kind] = o.begin(ctx, kind, client, changed)
		}
	}
	for kind, one := range o.followed {
		if one.isOld && (o.isReplaced(kind) || one.missed >= goneLooks) {
			one.stop()
			delete(o.followed, kind)
		}
	}
}

// missing are the followed kinds that are not named and that the API server does not list: it finds none, or the agent has no right to
// what is not there.
func (o *otherPolicies) missing(ctx context.Context, kinds []schema.GroupVersionResource, client dynamic.Interface) []schema.GroupVersionResource {
	var found []schema.GroupVersionResource
	for _, kind := range o.kinds() {
		if slices.Contains(kinds, kind) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, existsMax)
		_, err := client.Resource(kind).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			found = append(found, kind)
		}
		cancel()
	}
	return found
}

// isReplaced: whether another version of a kind was listed that the API server names.
func (o *otherPolicies) isReplaced(kind schema.GroupVersionResource) bool {
	for other, one := range o.followed {
		if other != kind && other.GroupResource() == kind.GroupResource() && !one.isOld && one.synced() {
			return true
		}
	}
	return false
}

func (o *otherPolicies) begin(ctx context.Context, kind schema.GroupVersionResource, client dynamic.Interface, changed func()) *otherKind {
	ctx, stop := context.WithCancel(ctx)
	// Nothing but the names is looked at.
	shares := kube.NewShares(othersBound, trimToName, func(string, string) {})
	one := &otherKind{informer: kube.Custom(client, kind, nil, shares), stop: stop}
	set := func(err error) {
		o.mutex.Lock()
		one.failed = err
		o.mutex.Unlock()
		changed()
	}
	err := one.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		// A watch that ends is begun again; without a list nothing is known.
		if !one.informer.HasSynced() {
			set(err)
		}
	})
	registration, errHandler := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	if err = errors.Join(err, errHandler); err != nil {
		panic(err) // only of an informer that has started
	}
	one.synced = registration.HasSynced
	go one.informer.Run(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), one.synced) {
			set(nil)
		}
	}()
	return one
}

// now is what is known.
func (o *otherPolicies) now() policyfile.Others {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	var unread []string
	if o.unread != nil {
		unread = append(unread, o.unread.Error())
	}
	others := policyfile.Others{Every: map[string][]string{}}
	for kind, one := range o.followed {
		if one.isOld && o.isReplaced(kind) {
			continue
		}
		name := kind.GroupResource().String()
		switch {
		case one.synced():
		case one.failed != nil:
			unread = append(unread, fmt.Sprintf("%s: %v", name, one.failed))
		default:
			unread = append(unread, name+": not listed yet")
		}
		for _, object := range one.informer.GetStore().List() {
			if found, ok := object.(*unstructured.Unstructured); ok {
				kind := found.GetKind() + " " + found.GetName() + " (" + kind.Group + ", which KTSN does not read)"
				others.Every[found.GetNamespace()] = append(others.Every[found.GetNamespace()], kind)
			}
		}
	}
	for _, names := range others.Every {
		slices.Sort(names)
	}
	slices.Sort(unread)
	others.Unread = strings.Join(unread, "; ")
	if len(others.Every) == 0 {
		others.Every = nil
	}
	return others
}

// kinds are the kinds that are followed.
func (o *otherPolicies) kinds() []schema.GroupVersionResource {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.Collect(maps.Keys(o.followed))
}
