// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Watch calls `changed` when links, addresses, routes or neighbours of the namespace change, whoever changes them. It
// returns with the first error: notifications may have been lost then, so the caller looks once and watches again.
// `namespace` is nil for the process's own.
func Watch(ctx context.Context, namespace *netns.NsHandle, changed func()) error {
	done := make(chan struct{})
	defer close(done)
	failed := make(chan error, 4)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	links := make(chan netlink.LinkUpdate, 64)
	routes := make(chan netlink.RouteUpdate, 64)
	neighbours := make(chan netlink.NeighUpdate, 64)
	addresses := make(chan netlink.AddrUpdate, 64)
	subscribers := []func() error{
		func() error {
			return netlink.LinkSubscribeWithOptions(links, done,
				netlink.LinkSubscribeOptions{Namespace: namespace, ErrorCallback: fail})
		},
		func() error {
			return netlink.RouteSubscribeWithOptions(routes, done,
				netlink.RouteSubscribeOptions{Namespace: namespace, ErrorCallback: fail})
		},
		func() error {
			return netlink.NeighSubscribeWithOptions(neighbours, done,
				netlink.NeighSubscribeOptions{Namespace: namespace, ErrorCallback: fail})
		},
		func() error {
			return netlink.AddrSubscribeWithOptions(addresses, done,
				netlink.AddrSubscribeOptions{Namespace: namespace, ErrorCallback: fail})
		},
	}
	for _, subscribe := range subscribers {
		if err := subscribe(); err != nil {
			return fmt.Errorf("watch the kernel's tables: %w", err)
		}
	}
	// Who still has something to say when this ends must not wait for a reader.
	defer func() {
		go drain(links)
		go drain(routes)
		go drain(neighbours)
		go drain(addresses)
	}()
	for {
		open := true
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("watch the kernel's tables: %w", err)
		case _, open = <-links:
		case _, open = <-routes:
		case _, open = <-neighbours:
		case _, open = <-addresses:
		}
		if !open {
			return fmt.Errorf("watch the kernel's tables: the socket was closed")
		}
		changed()
	}
}

func drain[T any](updates <-chan T) {
	for range updates { // closed by netlink's reader when it ends
	}
}

// Settle turns a burst of signals into one: it waits until nothing came for `quiet`, at most ten times as long.
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
