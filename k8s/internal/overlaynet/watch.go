// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Watch calls `changed` when links, addresses, routes or neighbours of the namespace change. It returns the first error: notifications
// may be lost then, so the caller reads all tables and watches again. `namespace` is nil for the process's own.
func Watch(ctx context.Context, namespace *netns.NsHandle, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	events := make(chan error, 64) // nil: a change
	post := func(event error) {
		select {
		case events <- event:
		case <-done:
		}
	}
	err := errors.Join(
		subscribe(post, func(updates chan<- netlink.LinkUpdate) error {
			return netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: namespace, ErrorCallback: post})
		}),
		subscribe(post, func(updates chan<- netlink.RouteUpdate) error {
			return netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{Namespace: namespace, ErrorCallback: post})
		}),
		subscribe(post, func(updates chan<- netlink.NeighUpdate) error {
			return netlink.NeighSubscribeWithOptions(updates, done, netlink.NeighSubscribeOptions{Namespace: namespace, ErrorCallback: post})
		}),
		subscribe(post, func(updates chan<- netlink.AddrUpdate) error {
			return netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{Namespace: namespace, ErrorCallback: post})
		}),
	)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case err = <-events:
			if err == nil {
				changed()
			}
		}
	}
	return fmt.Errorf("watch the kernel's tables: %w", err)
}

// subscribe posts nil for each update, and an error when netlink's reader ends.
func subscribe[T any](post func(error), begin func(chan<- T) error) error {
	updates := make(chan T)
	if err := begin(updates); err != nil {
		return err
	}
	go func() {
		for range updates {
			post(nil)
		}
		post(errors.New("the socket was closed"))
	}()
	return nil
}

// Settle turns a burst of signals into one: it waits until no signal came for `quiet`, at most ten times as long.
func Settle(ctx context.Context, signals <-chan struct{}, quiet time.Duration) {
	last := time.After(10 * quiet)
	for {
		select {
		case <-signals:
		case <-time.After(quiet):
			return
		case <-last:
			return
		case <-ctx.Done():
			return
		}
	}
}
