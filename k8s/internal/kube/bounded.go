// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A page of a list has pageFirst objects at first, and pageMost at most. One of more than pageOctets octets is not read to its end, and
// asked for again with half as many objects.
const (
	pageFirst  = 20
	pageMost   = 500
	pageOctets = 8 << 20
)

// againAfter is how long a namespace beyond its bound is left as it is before all objects are listed again.
const againAfter = 10 * time.Minute

// errPage says that a page is too long.
var errPage = errors.New("the page of a list is too long")

// Bound is how much of one kind is kept of one namespace.
type Bound struct {
	Objects int
	Octets  int // of the objects as they are kept, as JSON
}

// Shares keeps account of what each namespace has. Of a namespace beyond the bound only a part is kept: then nothing that is kept of it may be
// taken for all. It is safe for use by several goroutines.
type Shares struct {
	bound   Bound
	trim    func(runtime.Object)
	changed func(namespace, reason string)

	mutex  sync.Mutex
	spaces map[string]*space
}

// space is one namespace's part.
type space struct {
	objects int            // that there are
	kept    map[string]int // octets of those that are kept, by name
	octets  int            // of all that are kept
	over    string         // why not all are kept; empty: all are
	isMoved bool           // an object that is there no more, or has changed, since it is over
}

// NewShares makes an account of objects of one kind. `trim` removes the fields that the program does not read; an object may be trimmed twice.
// `changed` is called, without a lock, when a namespace gets beyond the bound.
func NewShares(bound Bound, trim func(runtime.Object), changed func(namespace, reason string)) *Shares {
	return &Shares{bound: bound, trim: trim, changed: changed, spaces: map[string]*space{}}
}

// Over returns the namespaces of which not everything is kept, with the reason.
func (s *Shares) Over() map[string]string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found := map[string]string{}
	for name, one := range s.spaces {
		if one.over != "" {
			found[name] = one.over
		}
	}
	return found
}

func spaceOf(spaces map[string]*space, namespace string) *space {
	if spaces[namespace] == nil {
		spaces[namespace] = &space{kept: map[string]int{}}
	}
	return spaces[namespace]
}

// keep says whether an object of these octets is kept. The reason is not empty when that changed the namespace's state.
func (s *Shares) keep(one *space, name string, octets int) (isKept bool, reason string) {
	before := one.kept[name]
	delete(one.kept, name)
	one.octets -= before
	switch {
	case one.octets+octets > s.bound.Octets:
		reason = fmt.Sprintf("more than %d octets", s.bound.Octets)
	case len(one.kept) >= s.bound.Objects:
		reason = fmt.Sprintf("more than %d objects", s.bound.Objects)
	default:
		one.kept[name] = octets
		one.octets += octets
		return true, ""
	}
	if one.over != "" {
		return false, ""
	}
	one.over = reason
	return false, reason
}

// bounded is a source of which at most a bound of each namespace is kept.
type bounded struct {
	source cache.ListerWatcherWithContext
	shares *Shares
}

// boundedSource lists in pages, trims each page at once, and leaves out what is beyond the shares' bound.
func boundedSource(source cache.ListerWatcher, shares *Shares) cache.ListerWatcher {
	b := &bounded{cache.ToListerWatcherWithContext(source), shares}
	return &cache.ListWatch{ListWithContextFunc: b.list, WatchFuncWithContext: b.watch}
}

func (b *bounded) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// Pages are of one version, which the server chooses: a list out of its cache has no pages.
	options.ResourceVersion, options.ResourceVersionMatch, options.Continue, options.Limit = "", "", "", pageFirst
	found, spaces, reasons := &metav1.List{}, map[string]*space{}, map[string]string{}
	part := int64(1) // a page gets longer by this part, less after one that was too long
	for {
		page, err := b.source.ListWithContext(ctx, options)
		if errors.Is(err, errPage) && options.Limit > 1 {
			options.Limit, part = options.Limit/2, 8
			continue
		}
		if err != nil {
			return nil, err
		}
		about, err := meta.ListAccessor(page)
		if err != nil {
			return nil, err
		}
		err = meta.EachListItem(page, func(object runtime.Object) error {
			namespace, name, octets, err := b.shares.measure(object)
			if err != nil {
				return err
			}
			one := spaceOf(spaces, namespace)
			one.objects++
			isKept, reason := b.shares.keep(one, name, octets)
			if reason != "" {
				reasons[namespace] = reason
			}
			if isKept {
				found.Items = append(found.Items, runtime.RawExtension{Object: object})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		found.ResourceVersion = about.GetResourceVersion()
		if options.Continue = about.GetContinue(); options.Continue == "" {
			break
		}
		options.Limit = min(options.Limit+options.Limit/part, pageMost)
	}
	b.shares.mutex.Lock()
	b.shares.spaces = spaces
	b.shares.mutex.Unlock()
	for namespace, reason := range reasons {
		b.shares.changed(namespace, reason)
	}
	return found, nil
}

// measure trims an object, and says how long the rest is.
func (s *Shares) measure(object runtime.Object) (namespace, name string, octets int, err error) {
	s.trim(object)
	about, err := meta.Accessor(object)
	if err != nil {
		return "", "", 0, err
	}
	text, err := json.Marshal(object)
	return about.GetNamespace(), about.GetName(), len(text), err
}

func (b *bounded) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	inner, err := b.source.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	out := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(out)
	go func() {
		defer close(out)
		defer inner.Stop()
		ticker := time.NewTicker(againAfter)
		defer ticker.Stop()
		for {
			var event watch.Event
			var isOpen bool
			select {
			case <-proxy.StopChan():
				return
			case event, isOpen = <-inner.ResultChan():
				if !isOpen {
					return
				}
				if event, isOpen = b.judge(event); !isOpen {
					continue
				}
			case <-ticker.C:
				if !b.shares.isWorthALook() {
					continue
				}
				status := apierrors.NewResourceExpired("a namespace beyond its bound has changed: all is listed again").Status()
				event = watch.Event{Type: watch.Error, Object: &status}
			}
			select {
			case out <- event:
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy, nil
}

// isWorthALook is true when a namespace is beyond its bound and has less now.
func (s *Shares) isWorthALook() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range s.spaces {
		if one.over != "" && one.isMoved {
			return true
		}
	}
	return false
}

// judge returns the event as the store may see it, and false where the store must not.
func (b *bounded) judge(event watch.Event) (watch.Event, bool) {
	if event.Type != watch.Added && event.Type != watch.Modified && event.Type != watch.Deleted {
		return event, true
	}
	namespace, name, octets, err := b.shares.measure(event.Object)
	if err != nil {
		return event, true // the informer says what is wrong with it
	}
	b.shares.mutex.Lock()
	one := spaceOf(b.shares.spaces, namespace)
	_, wasKept := one.kept[name]
	isKept, reason := false, ""
	switch event.Type {
	case watch.Added:
		one.objects++
		isKept, reason = b.shares.keep(one, name, octets)
	case watch.Modified:
		one.isMoved = true
		// What was left out stays out until all is listed again.
		if wasKept {
			isKept, reason = b.shares.keep(one, name, octets)
		}
	case watch.Deleted:
		one.isMoved = true
		one.objects--
		one.octets -= one.kept[name]
		delete(one.kept, name)
		if one.objects <= 0 {
			delete(b.shares.spaces, namespace)
		}
	}
	b.shares.mutex.Unlock()
	if reason != "" {
		b.shares.changed(namespace, reason)
	}
	if wasKept && !isKept {
		event.Type = watch.Deleted
	}
	return event, isKept || wasKept
}

// CapLists makes an API server's answer to a list in pages an error where it is longer than pageOctets. One object is never that long.
func CapLists(next http.RoundTripper) http.RoundTripper { return capped{next} }

type capped struct{ next http.RoundTripper }

func (c capped) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	if err == nil && isPage(request.URL.Query()) {
		response.Body = &page{ReadCloser: response.Body, left: pageOctets}
	}
	return response, err
}

func isPage(query url.Values) bool {
	limit, err := strconv.Atoi(query.Get("limit"))
	return err == nil && limit > 0 && query.Get("watch") == ""
}

// page is the body of an answer.
type page struct {
	io.ReadCloser
	left int
}

func (p *page) Read(into []byte) (int, error) {
	count, err := p.ReadCloser.Read(into)
	if p.left -= count; p.left < 0 {
		return 0, errPage
	}
	return count, err
}
