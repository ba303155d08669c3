// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// Which statuses of Streams one look writes, and how: what was asked for first goes first, and no Stream keeps the others waiting.

const (
	// decisionsMax and countersMax of one look, and how many writes are on their way at once: the API server has others to serve.
	decisionsMax, countersMax, writesAtOnce = 40, 5, 10
	// againMax verdicts of one look are tried again before other decisions: the rest of the look is for Streams whose writes do not fail.
	againMax = 10
)

// attempt to write a status; the API server may not have taken it.
type attempt struct {
	at         time.Time
	generation int64 // of the Stream
	// old is the version that was written on, once the API server has another: it took the write, or said that there was a conflict.
	old string
}

// What a status is written for, the most urgent first: a user waits for the verdict about what was applied; what follows from pods that come
// and go can be more than is written, and then is late.
const (
	verdict = iota
	verdictAgain
	otherDecision
	counters
)

// urgencyOf a status. A verdict that was tried before comes behind the new ones: its write may fail each time.
func urgencyOf(one *v1alpha1.Stream, next v1alpha1.StreamStatus, last attempt) int {
	switch {
	case one.Status.ObservedGeneration != one.Generation && last.generation != one.Generation:
		return verdict
	case one.Status.ObservedGeneration != one.Generation:
		return verdictAgain
	case !equality.Semantic.DeepEqual(decision(next), decision(one.Status)):
		return otherDecision
	}
	return counters
}

// chosen are the Streams whose next status is written now, and whether these are all that have a new one.
func (c *Controller) chosen(streams []*v1alpha1.Stream, next map[types.UID]v1alpha1.StreamStatus, now time.Time) ([]*v1alpha1.Stream, bool) {
	var changed []*v1alpha1.Stream
	tried, urgency := map[types.UID]attempt{}, map[types.UID]int{}
	for _, one := range streams {
		status, last := next[one.UID], c.work.tried[one.UID]
		tried[one.UID] = last
		if equality.Semantic.DeepEqual(status, one.Status) {
			continue
		}
		isRecent := now.Sub(last.at) < countersEvery
		if isRecent && last.old != "" && last.old == one.ResourceVersion {
			continue // a write on this version can only fail; the newer one is on its way here
		}
		urgency[one.UID] = urgencyOf(one, status, last)
		if isRecent && urgency[one.UID] == counters {
			continue
		}
		copied := *one
		copied.Status = status
		changed = append(changed, &copied)
	}
	// Each object gets its turn, also when writes of others fail.
	order := func(a, b *v1alpha1.Stream) int {
		return cmp.Or(urgency[a.UID]-urgency[b.UID], tried[a.UID].at.Compare(tried[b.UID].at), v1alpha1.CompareStreams(a, b))
	}
	slices.SortStableFunc(changed, order)
	again := 0
	for _, one := range changed {
		if urgency[one.UID] == verdictAgain {
			if again++; again > againMax {
				urgency[one.UID] = otherDecision
			}
		}
	}
	slices.SortStableFunc(changed, order)
	decisions := slices.IndexFunc(changed, func(one *v1alpha1.Stream) bool { return urgency[one.UID] == counters })
	if decisions < 0 {
		decisions = len(changed)
	}
	written := changed[:min(decisions, decisionsMax)]
	if decisions < decisionsMax {
		written = changed[:min(len(changed), max(decisions, countersMax))]
	}
	for _, one := range written {
		tried[one.UID] = attempt{at: now, generation: one.Generation}
	}
	c.work.tried = tried
	return written, len(written) == len(changed)
}

// writeStreams writes some at once: an API server far away must not make a thousand new Streams wait for each other.
func (c *Controller) writeStreams(ctx context.Context, all []*v1alpha1.Stream) error {
	faults := make([]error, len(all))
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(writesAtOnce, len(all)) {
		group.Go(func() {
			for at := int(next.Add(1)) - 1; at < len(all); at = int(next.Add(1)) - 1 {
				faults[at] = c.writeStream(ctx, all[at])
			}
		})
	}
	group.Wait()
	for at, one := range all {
		if faults[at] == nil {
			last := c.work.tried[one.UID]
			last.old = one.ResourceVersion
			c.work.tried[one.UID] = last
		}
	}
	return errors.Join(faults...)
}

// writeStream returns no error if the version that was decided on is old: the status was written, or another was quicker.
func (c *Controller) writeStream(ctx context.Context, one *v1alpha1.Stream) error {
	object, err := one.ToUnstructured()
	if err != nil {
		return err
	}
	// With the version that it was decided on: of two that believe to lead one loses.
	return c.write(ctx, func(ctx context.Context) error {
		_, err := c.slow.Resource(v1alpha1.Streams).Namespace(one.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// decision is a status without its counters.
func decision(status v1alpha1.StreamStatus) v1alpha1.StreamStatus {
	bare := *status.DeepCopy()
	bare.Frames, bare.Late = 0, 0
	for index := range bare.Nodes {
		bare.Nodes[index].Counters = nil
	}
	return bare
}
