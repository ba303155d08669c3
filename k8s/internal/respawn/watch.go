// SPDX-License-Identifier: Apache-2.0

package respawn

import (
	"context"
	"time"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// watch says how to ask a running program whether it lives.
type watch struct {
	// ask returns an error when the program does not answer.
	ask func(context.Context) error
	// another is true while a process other than the program with this number takes the questions: the program waits for its end.
	another func(ctx context.Context, program int) bool
	// every is the time between two questions, and the limit of one answer.
	every time.Duration
	// before is how many questions in a row may stay unanswered before the first answer: ktsnd restores all attachments first. after is
	// the same number later: attaching many pods at once keeps ktsnd busy.
	before, after int
}

// watchDaemon asks the ktsnd with that run directory.
func watchDaemon(runDir string) *watch {
	daemon := nodeapi.New(runDir)
	return &watch{
		ask: func(ctx context.Context) error {
			_, err := daemon.Health(ctx, &nodeapi.HealthRequest{})
			return err
		},
		another: func(ctx context.Context, program int) bool {
			serving, err := daemon.Process(ctx)
			return err == nil && serving != program
		},
		every: time.Second, before: 300, after: 30,
	}
}

// silent returns true after too many questions in a row without an answer, and false when the context ends. It counts questions, not
// time: while the container is frozen, or its virtual machine paused, it asks nothing and the program cannot answer. A question that was
// under way then had less than its time, and does not count. A program that waits for another one's end is asked nothing.
func (w *watch) silent(ctx context.Context, program int) bool {
	unanswered, limit := 0, w.before
	for ctx.Err() == nil {
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, w.every)
		waits := w.another(asking, program)
		var err error
		if !waits {
			err = w.ask(asking)
		}
		cancel()
		switch took := time.Since(began); {
		case waits:
			unanswered = 0
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
