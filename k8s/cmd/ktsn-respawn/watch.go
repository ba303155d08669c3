// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"ktsn.io/ktsn/k8s/internal/nodecall"
)

// watch says how a program that runs is asked whether it lives.
type watch struct {
	// ask is an error when it does not answer.
	ask func(context.Context) error
	// every is how often it is asked, and how long it has for an answer.
	every time.Duration
	// before its first answer it may be silent so long: it takes up all attachments first. Afterwards so long as after: attaching many
	// pods at once keeps it busy.
	before, after time.Duration
}

// watchDaemon asks the ktsnd with that run directory.
func watchDaemon(runDir string) *watch {
	return &watch{
		ask: func(ctx context.Context) error {
			// A call on the way would be the next one's: each has a connection of its own.
			daemon := nodecall.New(runDir)
			defer daemon.Close()
			return daemon.Health(ctx)
		},
		every: time.Second, before: 5 * time.Minute, after: 30 * time.Second,
	}
}

// silent returns after so long a silence, or when the context ends: then false.
func (w *watch) silent(ctx context.Context) bool {
	last, limit := time.Now(), w.before
	for ctx.Err() == nil {
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, w.every)
		if w.ask(asking) == nil {
			last, limit = time.Now(), w.after
		}
		cancel()
		if time.Since(last) > limit {
			return ctx.Err() == nil
		}
		timer := time.NewTimer(max(0, w.every-time.Since(began)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return false
}
