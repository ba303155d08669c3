// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"ktsn.io/ktsn/k8s/internal/controller"
	"ktsn.io/ktsn/k8s/internal/eventually"
)

func TestFlags(t *testing.T) {
	environment := map[string]string{"POD_NAMESPACE": "tsn", "POD_NAME": "c-1", "KTSN_TSN_CIDR": "10.99.0.0/16"}
	c, err := parse([]string{"--rollout-margin", "5s"}, func(name string) string { return environment[name] }, io.Discard)
	if err != nil || c.namespace != "tsn" || c.identity != "c-1" || len(c.work.Prefixes.CIDRs) != 1 || c.work.Rollouts.Margin != 5*time.Second ||
		!c.elect || c.work.Prefixes.IPv4 != 24 {
		t.Errorf("%+v, %v", c, err)
	}
	none := func(string) string { return "" }
	for argument, text := range map[string]string{
		"--tsn-cidr=10.99.0.1/16": "--tsn-cidr: found", "--rollout-margin=1s": "--rollout-margin: found", "--check-timeout=1ms": "--check-timeout: found",
		"--hand-over=2s":   "--hand-over: found",
		"--hand-over=19us": "--hand-over: found",
		"--log-level=loud": "--log-level: found", "word": "unexpected argument", "--unknown": "not defined",
	} {
		if _, err := parse([]string{argument}, none, io.Discard); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", argument, err)
		}
	}
	service := func(name string) string { return map[string]string{"KUBERNETES_SERVICE_HOST": "10.99.0.1"}[name] }
	if _, err := parse([]string{"--tsn-cidr=10.99.0.0/16"}, service, io.Discard); err == nil || !strings.Contains(err.Error(), "overlaps 10.99.0.1/32 (the API server") {
		t.Errorf("the range holds the API server's service: %v", err)
	}
	if _, err := parse([]string{"--tsn-cidr=10.99.0.0/16", "--prefix-length-ipv4=31"}, none, io.Discard); err == nil {
		t.Error("a prefix without addresses for pods")
	}
	var out bytes.Buffer
	if _, err := parse([]string{"--help"}, none, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "Examples:") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// Of two that run, one works; when it ends the other one goes on, and never do both.
func TestOneLeads(t *testing.T) {
	kube := fake.NewClientset()
	var working, most, begun atomic.Int32
	work := func(ctx context.Context) {
		begun.Add(1)
		if now := working.Add(1); now > most.Load() {
			most.Store(now)
		}
		<-ctx.Done()
		working.Add(-1)
	}
	var group sync.WaitGroup
	begin := func(name string) context.CancelFunc {
		ctx, cancel := context.WithCancel(context.Background())
		c := config{namespace: "n", lease: "l", identity: name, work: controller.Config{Log: slog.New(slog.DiscardHandler)}}
		group.Add(1)
		go func() {
			defer group.Done()
			if err := lead(ctx, c, kube, work); err != nil {
				t.Error(err)
			}
		}()
		return cancel
	}
	endFirst := begin("first")
	eventually.Holds(t, "one leads", func() bool { return begun.Load() == 1 })
	endSecond := begin("second")
	time.Sleep(2500 * time.Millisecond) // longer than it waits between its tries
	if begun.Load() != 1 {
		t.Errorf("%d have begun", begun.Load())
	}
	endFirst()
	eventually.Holds(t, "the other one leads", func() bool { return begun.Load() == 2 })
	endSecond()
	group.Wait()
	if most.Load() != 1 {
		t.Errorf("%d at a time", most.Load())
	}
}

func TestWhatIsServed(t *testing.T) {
	work := controller.New(fake.NewClientset(), nil, nil, controller.Config{Log: slog.New(slog.DiscardHandler)})
	for path, want := range map[string]string{
		"/livez": "200 ok", "/readyz": "503 the API server's objects were not seen yet", "/metrics": "200 # HELP", "/": "404",
	} {
		recorder := httptest.NewRecorder()
		handler(work).ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		text := recorder.Result().Status[:3] + " " + recorder.Body.String()
		if !strings.HasPrefix(text, want) || path == "/metrics" && !strings.Contains(text, "ktsn_controller_leader 0") {
			t.Errorf("%s: %.80s", path, text)
		}
	}
}
