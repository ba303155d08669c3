// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"
)

// stuckAfter is how long a step of a loop may take: each call that a step waits for has a deadline of its own, of ten seconds at most.
const stuckAfter = 2 * time.Minute

// beats are the heartbeats of the agent's loops.
type beats struct {
	mutex sync.Mutex
	began map[string]time.Time // steps that are on their way, by loop
	now   func() time.Time
}

func newBeats() *beats { return &beats{began: map[string]time.Time{}, now: time.Now} }

// begin: a step of the loop begins.
func (b *beats) begin(loop string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.began[loop] = b.now()
}

// end: it has ended. That of a step that panics ends the process.
func (b *beats) end(loop string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	delete(b.began, loop)
}

// stuck names the loops of which a step takes too long; nil: none.
func (b *beats) stuck() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	var found []string
	for loop, began := range b.began {
		if since := b.now().Sub(began); since > stuckAfter {
			found = append(found, fmt.Sprintf("%s: a step takes %s", loop, since.Round(time.Second)))
		}
	}
	if len(found) == 0 {
		return nil
	}
	sort.Strings(found)
	return fmt.Errorf("stuck: %s", strings.Join(found, "; "))
}
