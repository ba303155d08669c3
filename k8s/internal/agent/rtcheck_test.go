// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"ktsn.io/ktsn/k8s/internal/rtcheck"
)

// checks is an agent whose checks are counted.
type checks struct {
	*bench
	ctx     context.Context
	checker *checker
	count   int
	time    time.Time
}

func newChecks(t *testing.T, annotations map[string]string) *checks {
	c := &checks{time: time.Unix(1e9, 0)}
	c.bench = newBench(t, func(c *Config) { c.Overlay, c.RTCheck = false, true }, nil, node("kn1", "192.0.2.1", annotations, 0))
	c.checker = &checker{now: func() time.Time { return c.time }, run: func(context.Context) rtcheck.Result {
		c.count++
		return rtcheck.Result{At: c.time.UTC(), MeasuredNs: 1e10, MaxNs: 120_000, Services: []rtcheck.Service{
			{Service: "Motion", Verdict: "FAIL", Margin: -2.5}, {Service: "Remote control", Verdict: "PASS", Margin: 0.75},
		}}
	}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c.ctx = ctx
	c.informers(ctx)
	c.eventually("all is seen", func() bool { return c.parts.get(partAPI) == nil })
	return c
}

// annotations are those of the API server; what the agent sees follows.
func (c *checks) annotations() map[string]string {
	c.t.Helper()
	node, err := c.kube.CoreV1().Nodes().Get(c.ctx, "kn1", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the agent sees it", func() bool {
		seen, err := c.nodes.Get("kn1")
		return err == nil && seen.Annotations[rtcheck.Request] == node.Annotations[rtcheck.Request] &&
			seen.Annotations[rtcheck.Annotation] == node.Annotations[rtcheck.Annotation]
	})
	return node.Annotations
}

func (c *checks) ask(value string) {
	c.t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"` + rtcheck.Request + `":"` + value + `"}}}`)
	if _, err := c.kube.CoreV1().Nodes().Patch(c.ctx, "kn1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.annotations()
}

func (c *checks) look() {
	c.t.Helper()
	if err := c.answerRTCheck(c.ctx, c.checker); err != nil {
		c.t.Fatal(err)
	}
}

func TestARequestIsAnsweredOnce(t *testing.T) {
	c := newChecks(t, map[string]string{"ktsn.io/vtep": "x"})
	c.look()
	if c.count != 0 {
		t.Fatal("nothing was asked for")
	}
	c.ask("now")
	c.look()
	found := c.annotations()
	result, ok := rtcheck.Parse(found[rtcheck.Annotation])
	if _, isAsked := found[rtcheck.Request]; isAsked || !ok || len(result.Services) != 2 || found["ktsn.io/vtep"] != "x" {
		t.Fatalf("%v", found)
	}
	c.look()
	if c.count != 1 {
		t.Fatalf("%d checks for one request", c.count)
	}
	// The next one waits until a minute has passed.
	c.ask("now")
	c.time = c.time.Add(rtCheckPause - time.Second)
	if c.look(); c.count != 1 || c.annotations()[rtcheck.Request] != "now" {
		t.Fatalf("%d checks at once", c.count)
	}
	c.time = c.time.Add(time.Second)
	if c.look(); c.count != 2 {
		t.Fatalf("%d checks", c.count)
	}
	metrics := c.get("/metrics")
	for _, line := range []string{
		`ktsn_rt_check_margin_ratio{service="Motion"} -2.5`, `ktsn_rt_check_verdict{service="Motion"} 0`,
		`ktsn_rt_check_verdict{service="Remote control"} 2`, `ktsn_rt_check_latency_max_seconds 0.00012`,
		`ktsn_rt_check_timestamp_seconds 1.00000006e+09`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("%s is not in\n%s", line, metrics)
		}
	}
}

func TestAnAnswerThatCannotBeWrittenIsKept(t *testing.T) {
	c := newChecks(t, map[string]string{rtcheck.Request: "now"})
	fails := true
	c.kube.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		return fails, nil, errors.New("the policy denies it")
	})
	for range 3 {
		if err := c.answerRTCheck(c.ctx, c.checker); err == nil || !strings.Contains(err.Error(), "the policy denies it") {
			t.Fatal(err)
		}
	}
	fails = false
	c.look()
	if _, ok := rtcheck.Parse(c.annotations()[rtcheck.Annotation]); !ok || c.count != 1 {
		t.Errorf("%d checks, %v", c.count, c.annotations())
	}
}

func TestAWrongRequestAndAnEndingAgentMeasureNothing(t *testing.T) {
	c := newChecks(t, map[string]string{rtcheck.Request: "yes"})
	c.look()
	result, _ := rtcheck.Parse(c.annotations()[rtcheck.Annotation])
	if c.count != 0 || !strings.Contains(result.Error, `expected "now"`) {
		t.Errorf("%d checks, %+v", c.count, result)
	}
	if metrics := c.get("/metrics"); !strings.Contains(metrics, "ktsn_rt_check_failed 1") || strings.Contains(metrics, "rt_check_margin") {
		t.Error(metrics)
	}
	// The request of an agent that ends in mid-check stays for the next one.
	c.ask("now")
	ctx, cancel := context.WithCancel(c.ctx)
	run := c.checker.run
	c.checker.run = func(ctx context.Context) rtcheck.Result {
		cancel()
		return run(ctx)
	}
	if err := c.answerRTCheck(ctx, c.checker); err != nil || c.annotations()[rtcheck.Request] != "now" {
		t.Errorf("%v %v", err, c.annotations())
	}
}

func TestChecksAreOffUnlessAskedFor(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", map[string]string{rtcheck.Request: "now"}, 0))
	b.rtCheckLoop(context.Background()) // it ends at once
	found, err := b.kube.CoreV1().Nodes().Get(context.Background(), "kn1", metav1.GetOptions{})
	if err != nil || found.Annotations[rtcheck.Request] != "now" {
		t.Errorf("%v %v", err, found)
	}
}
