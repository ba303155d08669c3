// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"ktsn.io/ktsn/k8s/internal/rtcheck"
)

const (
	// rtCheckLook is how often this Node's annotation is looked at.
	rtCheckLook = 2 * time.Second
	// rtCheckPause lies between two checks: a probe goes before all other threads, so no annotation may keep it running.
	rtCheckPause = time.Minute
)

// rtCheckLoop answers requests for a real-time check, where it is on. It has no beat: a check takes longer than any other step, and has a
// limit of its own.
func (a *Agent) rtCheckLoop(ctx context.Context) {
	if !a.config.RTCheck {
		return
	}
	checker := &checker{run: func(ctx context.Context) rtcheck.Result {
		return rtcheck.Run(ctx, rtcheck.Config{Program: a.config.RTProgram, Duration: a.config.RTDuration})
	}, now: time.Now}
	reported := ""
	every(ctx, always(rtCheckLook), nil, func(ctx context.Context) {
		text := ""
		if err := a.answerRTCheck(ctx, checker); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != reported && text != "" {
			a.config.Log.Warn("real-time check", "error", text)
		}
		reported = text
	})
}

// checker makes checks, and keeps the answer that could not be written yet.
type checker struct {
	run  func(context.Context) rtcheck.Result
	now  func() time.Time
	last time.Time
	held *rtcheck.Result
}

// answerRTCheck looks once: it makes a check where one is asked for, writes the answer, and takes the request away, so that the next one is seen.
func (a *Agent) answerRTCheck(ctx context.Context, checker *checker) error {
	node, err := a.nodes.Get(a.config.NodeName)
	if err != nil {
		return err
	}
	if result, ok := rtcheck.Parse(node.Annotations[rtcheck.Annotation]); ok {
		a.showRTCheck(result) // also that of an agent before this one
	}
	request, isAsked := node.Annotations[rtcheck.Request]
	if !isAsked {
		checker.held = nil
		return nil
	}
	if checker.held == nil {
		switch {
		case request != rtcheck.Now:
			checker.held = &rtcheck.Result{At: checker.now().UTC().Truncate(time.Second), Error: fmt.Sprintf("%s: expected %q", rtcheck.Request, rtcheck.Now)}
		case !checker.last.IsZero() && checker.now().Sub(checker.last) < rtCheckPause:
			return nil // it waits
		default:
			a.config.Log.Info("real-time check", "duration", a.config.RTDuration)
			result := checker.run(ctx)
			checker.last = checker.now()
			if ctx.Err() != nil {
				return nil // the request stays for the next agent
			}
			checker.held = &result
		}
	}
	// One patch: no request is taken away without its answer.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		rtcheck.Annotation: checker.held.Text(), rtcheck.Request: nil,
	}}})
	if err != nil {
		return err
	}
	patching, cancel := context.WithTimeout(ctx, patchMax)
	defer cancel()
	if err := a.kube.PatchNode(patching, node.Name, patch); err != nil {
		return fmt.Errorf("annotation %s: %w", rtcheck.Annotation, err)
	}
	a.showRTCheck(*checker.held)
	checker.held = nil
	return nil
}

// showRTCheck keeps a result for the metrics.
func (a *Agent) showRTCheck(result rtcheck.Result) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.statuses.RTCheck = &result
}
