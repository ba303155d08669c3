// SPDX-License-Identifier: Apache-2.0

package respawn

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// run supervises a shell script that writes its number of starts to $0; what was said, and the status.
func run(t *testing.T, script string, signals <-chan os.Signal) (starts, status int, said string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "starts")
	var text strings.Builder
	status = supervise([]string{"/bin/sh", "-c", "echo >>$0; " + script, file}, nil, signals, text.WriteString)
	lines, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return len(lines), status, text.String()
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		script         string
		starts, status int
	}{
		"done":                {"exit 0", 1, 0},
		"wrong configuration": {"exit 2", 1, 2},
		"one crash":           {"[ $(wc -l <$0) = 1 ] && kill -KILL $$; exit 0", 2, 0},
		"always failing":      {"exit 7", deathsMax, 7},
		"always killed":       {"kill -SEGV $$", deathsMax, 128 + int(syscall.SIGSEGV)},
	} {
		if starts, status, said := run(t, c.script, nil); starts != c.starts || status != c.status {
			t.Errorf("%s: %d starts, status %d, want %d, %d; %s", name, starts, status, c.starts, c.status, said)
		}
	}
}

func TestAskedToEnd(t *testing.T) {
	signals := make(chan os.Signal, 1)
	time.AfterFunc(200*time.Millisecond, func() { signals <- syscall.SIGTERM })
	began := time.Now()
	starts, status, _ := run(t, "trap 'exit 9' TERM; while :; do sleep 0.05; done", signals)
	if starts != 1 || status != 9 || time.Since(began) > 10*time.Second {
		t.Errorf("%d starts, status %d after %s", starts, status, time.Since(began))
	}
}

func TestDeathsAreForgotten(t *testing.T) {
	now := time.Now()
	if left := recent([]time.Time{now.Add(-2 * window), now.Add(-window / 2), now}, now); len(left) != 2 {
		t.Errorf("%v", left)
	}
}

func TestNoProgram(t *testing.T) {
	var said strings.Builder
	if status := supervise([]string{"/nowhere/ktsnd"}, nil, nil, said.WriteString); status != 1 || !strings.Contains(said.String(), "/nowhere/ktsnd") {
		t.Errorf("%d %q", status, said.String())
	}
}

// serves says that no other process takes the questions.
func serves(context.Context, int) bool { return false }

// A ktsnd that waits for another one's end is left alone, also where that one does not answer. When it serves, its silence counts.
func TestOneThatWaitsIsNotAsked(t *testing.T) {
	directory := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(directory, nodeapi.SocketName)) // it answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asking := watchDaemon(directory)
	asking.every, asking.before, asking.after = 10*time.Millisecond, 5, 5
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if asking.silent(ctx, os.Getpid()+1) {
		t.Error("killed for the silence of another one")
	}
	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if !asking.silent(ctx, os.Getpid()) {
		t.Error("its own silence does not count")
	}
	// Without a socket neither serves: that counts.
	listener.Close()
	if !asking.silent(ctx, os.Getpid()+1) {
		t.Error("silence without a socket does not count")
	}
}

// A program that answers no more, stopped say, is killed and started again; one that answers, or does not yet, is left alone.
func TestAProgramThatAnswersNoMoreIsKilled(t *testing.T) {
	var answers atomic.Bool
	var asked atomic.Int32
	asking := &watch{
		ask: func(context.Context) error {
			if asked.Add(1) == 3 {
				answers.Store(true) // once, so that it counts as one that has begun
				return nil
			}
			return errors.New("silent")
		},
		another: serves,
		every:   10 * time.Millisecond, before: 1 << 30, after: 5,
	}
	file := filepath.Join(t.TempDir(), "starts")
	var said strings.Builder
	// The first one stops itself, the second is done.
	script := "echo >>$0; [ $(wc -l <$0) = 1 ] && kill -STOP $$; exit 0"
	status := supervise([]string{"/bin/sh", "-c", script, file}, asking, nil, said.WriteString)
	if status != 0 || !answers.Load() || !strings.Contains(said.String(), "answers no more: killed") || !strings.Contains(said.String(), "died with 137, started again") {
		t.Errorf("%d: %s", status, said.String())
	}
	// None has answered yet, and the second was left alone.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if asking.silent(ctx, 0) {
		t.Error("one that has never answered counts as silent")
	}
}

// A container that is frozen for long, and a question on its way: the program answers again, and lives. What it leaves unanswered
// without a pause counts.
func TestAPauseIsNoSilence(t *testing.T) {
	const every, after = 10 * time.Millisecond, 5
	for name, c := range map[string]struct {
		unanswered int // questions, before a pause of many
		answers    bool
		want       bool
	}{
		"it answers after the pause":         {1, true, false},
		"almost silent before, then answers": {after - 1, true, false},
		"silent before and after":            {after - 1, false, true},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		asked := 0
		asking := &watch{every: every, before: after, after: after, another: serves, ask: func(context.Context) error {
			switch asked++; {
			case asked == 1:
				return nil
			case asked == c.unanswered+2:
				time.Sleep(20 * every) // frozen
				return errors.New("no answer in time")
			case asked > c.unanswered+2 && c.answers:
				if asked > c.unanswered+2+2*after {
					cancel()
				}
				return nil
			}
			return errors.New("silent")
		}}
		if silent := asking.silent(ctx, 0); silent != c.want {
			t.Errorf("%s: %v after %d questions", name, silent, asked)
		}
		cancel()
	}
}
