// SPDX-License-Identifier: Apache-2.0

// Package eventually is how a test waits for something that another goroutine or process does. No shipped program uses it.
//
// In: a question that is asked again. Out: the first yes. It judges no duration: its limit only ends a test that would hang.
package eventually

import (
	"testing"
	"time"
)

const (
	limit = 60 * time.Second
	pause = 5 * time.Millisecond
)

// Holds waits until the question is answered with yes. After a minute without one the test fails with what, and with each state as it
// is then.
func Holds(t testing.TB, what string, holds func() bool, states ...any) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("never: %s %v", what, states)
		}
	}
}
