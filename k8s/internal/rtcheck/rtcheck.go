// SPDX-License-Identifier: Apache-2.0

// Package rtcheck finds out whether this node is fit for real time, by one short run of `ktsn doctor --wake-ups`.
//
// In: the program, how long. Out: a verdict and a margin for each service, as a Node's annotation holds it. The run has no load: one thread
// wakes up a hundred times a second. It ends with the context, and writes no file.
package rtcheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// Request is the annotation by which a Node is asked for a check, Now its only value.
	Request = "ktsn.io/rt-check"
	Now     = "now"
	// Annotation has the answer.
	Annotation = "ktsn.io/rt-verdict"

	// system of the run: the node itself.
	system = "host"
	// spare is what a run may take beside its duration.
	spare = time.Minute
	// killAfter is how long a run may take to end when it is asked to.
	killAfter = 5 * time.Second
	// bounds of what is read and said.
	resultsMax  = 1 << 20
	servicesMax = 32
	wordsMax    = 400
)

// Config says how a check is made.
type Config struct {
	Program  string // ktsn
	Duration time.Duration
}

// Service is one service's verdict.
type Service struct {
	Service string `json:"service"`
	Verdict string `json:"verdict"` // PASS, TIGHT or FAIL
	// Margin is the rest of the share that processing may use of the service's latency and jitter; below 0: what is missing.
	Margin float64 `json:"margin"`
}

// Result is the answer to a request.
type Result struct {
	At time.Time `json:"at"`
	// MeasuredNs is how long was measured. A short time never says "fit".
	MeasuredNs uint64    `json:"measured_ns,omitempty"`
	P999Ns     uint64    `json:"p99_9_ns,omitempty"`
	MaxNs      uint64    `json:"max_ns,omitempty"`
	Services   []Service `json:"services,omitempty"`
	// Error is why there is no verdict.
	Error string `json:"error,omitempty"`
}

// Text is the annotation's.
func (r Result) Text() string {
	text, err := json.Marshal(r)
	if err != nil {
		return `{"error":"a figure that is no number"}`
	}
	return string(text)
}

// Parse reads an annotation; ok is false for what is none.
func Parse(text string) (r Result, ok bool) {
	if text == "" || len(text) > 64<<10 || json.Unmarshal([]byte(text), &r) != nil {
		return Result{}, false
	}
	return r, true
}

// Run makes a check. The result has an error where there is no verdict.
func Run(ctx context.Context, config Config) Result {
	result, err := run(ctx, config)
	if err != nil {
		result = Result{Error: shorten(err.Error())}
	}
	result.At = time.Now().UTC().Truncate(time.Second)
	return result
}

func run(ctx context.Context, config Config) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, config.Duration+spare)
	defer cancel()
	command := exec.CommandContext(ctx, config.Program, "doctor", "--wake-ups", fmt.Sprintf("%dms", config.Duration.Milliseconds()), "--json")
	var found, said bounded
	command.Stdout, command.Stderr = &found, &said
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = killAfter
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The signal comes when the thread that started it ends, not the process: this one stays until the check is over.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := command.Run()
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("the check was ended after %s at most", config.Duration+spare)
	}
	if found.isFull || said.isFull {
		return Result{}, fmt.Errorf("%s doctor --wake-ups: said more than %d octets", config.Program, resultsMax)
	}
	if err != nil {
		return Result{}, fmt.Errorf("%s doctor --wake-ups: %w: %s", config.Program, err, strings.TrimSpace(string(said.octets)))
	}
	return Read(found.octets)
}

// bounded takes what a program says, up to resultsMax octets.
type bounded struct {
	octets []byte
	isFull bool
}

// Write refuses what comes beyond: the program then gets a closed pipe.
func (b *bounded) Write(octets []byte) (int, error) {
	if b.isFull = b.isFull || len(b.octets)+len(octets) > resultsMax; b.isFull {
		return 0, io.ErrShortWrite
	}
	b.octets = append(b.octets, octets...)
	return len(octets), nil
}

// results is what is read of what `ktsn doctor --wake-ups --json` prints. Without a measurement there is the finding alone.
type results struct {
	Findings []struct {
		Value  string `json:"value"`
		Remedy string `json:"remedy"`
	} `json:"findings"`
	RealTime *struct {
		Cells []struct {
			System     string `json:"system"`
			MeasuredNs uint64 `json:"measured_ns"`
			Statistics *struct {
				P999Ns uint64 `json:"p99_9_ns"`
				MaxNs  uint64 `json:"max_ns"`
			} `json:"statistics"`
		} `json:"cells"`
		Verdicts []struct {
			Service string  `json:"service"`
			Outcome string  `json:"outcome"`
			Margin  float64 `json:"margin_ratio"`
		} `json:"verdicts"`
	} `json:"realtime"`
}

// Read makes a result of what `ktsn doctor --wake-ups --json` printed.
func Read(text []byte) (Result, error) {
	var found results
	if err := json.Unmarshal(text, &found); err != nil {
		return Result{}, fmt.Errorf("ktsn doctor: %w", err)
	}
	if found.RealTime == nil {
		for _, finding := range found.Findings {
			return Result{}, fmt.Errorf("%s; %s", finding.Value, finding.Remedy)
		}
		return Result{}, errors.New("ktsn doctor: neither a measurement nor a finding")
	}
	cells := found.RealTime.Cells
	if len(cells) != 1 || cells[0].System != system {
		return Result{}, errors.New("ktsn doctor: not one cell of this node")
	}
	verdicts := found.RealTime.Verdicts
	if cells[0].Statistics == nil || len(verdicts) == 0 || len(verdicts) > servicesMax {
		return Result{}, errors.New("ktsn doctor: no statistics, or no verdicts")
	}
	result := Result{MeasuredNs: cells[0].MeasuredNs, P999Ns: cells[0].Statistics.P999Ns, MaxNs: cells[0].Statistics.MaxNs}
	for _, verdict := range verdicts {
		if Rank(verdict.Outcome) < 0 {
			return Result{}, fmt.Errorf("ktsn doctor: a verdict %q", shorten(verdict.Outcome))
		}
		result.Services = append(result.Services, Service{Service: shorten(verdict.Service), Verdict: verdict.Outcome, Margin: verdict.Margin})
	}
	return result, nil
}

// Rank is a verdict as a number: 0 FAIL, 1 TIGHT, 2 PASS; -1: it is none.
func Rank(verdict string) int {
	for rank, word := range []string{"FAIL", "TIGHT", "PASS"} {
		if word == verdict {
			return rank
		}
	}
	return -1
}

// shorten keeps the end of a long text: a program's reason stands there.
func shorten(text string) string {
	if runes := []rune(text); len(runes) > wordsMax {
		return "… " + string(runes[len(runes)-wordsMax:])
	}
	return text
}
