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
	// before its first answer it may leave so many questions in a row unanswered: it takes up all attachments first. Afterwards as
	// many as after: attaching many pods at once keeps it busy.
	before, after int
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
		every: time.Second, before: 300, after: 30,
	}
}

// silent returns after so many questions in a row without an answer, or when the context ends: then false. Questions are counted, not
// time: while the container is frozen, or its virtual machine paused, nothing is asked and nothing can answer. A question that was on
// its way then had less than its time, and does not count.
func (w *watch) silent(ctx context.Context) bool {
	unanswered, limit := 0, w.before
	for ctx.Err() == nil {
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, w.every)
		err := w.ask(asking)
		cancel()
		switch took := time.Since(began); {
		case err == nil:
			unanswered, limit = 0, w.after
		case took <= 2*w.every:
			unanswered++
		}
		if unanswered >= limit {
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
