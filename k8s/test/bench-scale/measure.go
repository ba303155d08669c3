// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Bars of the project.
const (
	memoryMax  = 500 << 20 // of ktsn-controller, octets
	verdictMax = 5 * time.Second
	writesMax  = 1.0 // a second, while nothing changes
)

var quantityOne = resource.MustParse("1")

// clockTick is Linux's USER_HZ.
const clockTick = 100

type process struct{ pid int }

type usage struct {
	cpu          time.Duration
	memory, most int64 // resident, octets
}

func (p *process) usage() (usage, error) {
	var u usage
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(ticks) * time.Second / clockTick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return u, err
	}
	for name, into := range map[string]*int64{"VmRSS": &u.memory, "VmHWM": &u.most} {
		found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			return u, fmt.Errorf("/proc/%d/status has no %s", p.pid, name)
		}
		kib, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			return u, err
		}
		*into = kib << 10
	}
	return u, nil
}

// settled waits until the controller has accepted all Streams.
func (c *cluster) settled(ctx context.Context) error {
	begun, said := time.Now(), time.Now()
	for ctx.Err() == nil && time.Since(begun) < 30*time.Minute {
		list, err := c.custom.Resource(v1alpha1.Streams).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		accepted := 0
		for index := range list.Items {
			one, err := v1alpha1.StreamFrom(&list.Items[index])
			if err != nil {
				return err
			}
			if one.Status.NodesApplied == "1/1" {
				accepted++
			}
		}
		if accepted == c.streams() {
			return nil
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			say("%d of %d Streams accepted", accepted, c.streams())
		}
		time.Sleep(2 * time.Second)
	}
	return errors.Join(ctx.Err(), errors.New("not all Streams are accepted after 30 minutes"))
}

// span is what was measured while something went on.
type span struct {
	writesPerSecond, cpuShare float64
	usage                     usage
}

func measured(ctx context.Context, c *cluster, p *process, length time.Duration, act func(context.Context) error) (span, error) {
	var s span
	writes, err := c.writes(ctx)
	if err != nil {
		return s, err
	}
	before, err := p.usage()
	if err != nil {
		return s, err
	}
	begun := time.Now()
	while, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	if err := act(while); err != nil {
		return s, err
	}
	took := time.Since(begun).Seconds()
	after, err := p.usage()
	if err != nil {
		return s, fmt.Errorf("ktsn-controller has ended: %w", err)
	}
	later, err := c.writes(ctx)
	if err != nil {
		return s, err
	}
	s.writesPerSecond, s.cpuShare, s.usage = (later-writes)/took, (after.cpu-before.cpu).Seconds()/took, after
	return s, ctx.Err()
}

var request = regexp.MustCompile(`^apiserver_request_total\{.*verb="(POST|PUT|PATCH|DELETE|APPLY)".*\} ([0-9.e+]+)$`)

// writes counts what the API server was asked to write, by all.
func (c *cluster) writes(ctx context.Context) (float64, error) {
	text, err := c.metrics(ctx)
	if err != nil {
		return 0, err
	}
	var sum float64
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if found := request.FindStringSubmatch(lines.Text()); found != nil {
			count, err := strconv.ParseFloat(found[2], 64)
			if err != nil {
				return 0, err
			}
			sum += count
		}
	}
	return sum, lines.Err()
}

func (c *cluster) metrics(ctx context.Context) ([]byte, error) {
	return c.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}

var stored = regexp.MustCompile(`(?m)^apiserver_storage_size_bytes\{.*\} ([0-9.e+]+)$`)

// storeSize is etcd's, in octets.
func (c *cluster) storeSize(ctx context.Context) float64 {
	text, err := c.metrics(ctx)
	if err != nil {
		return 0
	}
	if found := stored.FindSubmatch(text); found != nil {
		size, _ := strconv.ParseFloat(string(found[1]), 64)
		return size
	}
	return 0
}

// verdicts are how long the changed Streams waited, ascending; lost ones have none after ten times the bar.
func (c *cluster) verdicts(ctx context.Context) (spans []time.Duration, lost int) {
	while, cancel := context.WithTimeout(ctx, 10*verdictMax)
	defer cancel()
	for while.Err() == nil {
		c.mutex.Lock()
		lost = len(c.asked) - len(c.counted)
		spans = slices.Sorted(maps.Values(c.counted))
		c.mutex.Unlock()
		if lost == 0 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return spans, lost
}

func at(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// report prints the figures, writes the document and judges the bars.
func report(file string, c *cluster, filled, accepted time.Duration, idle, churn span, spans []time.Duration, lost int) error {
	bars := []struct {
		name       string
		value, bar float64
		unit       string
	}{
		{"controller_memory_octets.max", float64(churn.usage.most), memoryMax, "octets"},
		{"stream_verdict_ns.p99", float64(at(spans, 0.99)), float64(verdictMax), "ns"},
		{"api_writes_per_second.idle", idle.writesPerSecond, writesMax, "1/s"},
		{"streams_without_verdict", float64(lost), 0, "1"},
	}
	others := map[string]float64{
		"filled_ns": float64(filled), "all_streams_accepted_ns": float64(accepted), "stream_verdict_ns.p50": float64(at(spans, 0.5)),
		"stream_verdict_ns.max": float64(at(spans, 1)), "streams_changed": float64(len(spans) + lost), "pods_replaced": float64(c.replaced.Load()),
		"controller_cpu_ratio.idle": idle.cpuShare, "controller_cpu_ratio.churn": churn.cpuShare, "controller_memory_octets.idle": float64(idle.usage.memory),
		"api_writes_per_second.churn": churn.writesPerSecond, "store_octets": c.storeSize(context.Background()),
	}
	var comparisons, micro []map[string]any
	failed := []string{}
	for _, bar := range bars {
		holds := bar.value <= bar.bar
		comparisons = append(comparisons, map[string]any{"metric": bar.name, "of": "ktsn-controller", "ratio": bar.value, "bar": bar.bar, "holds": holds})
		fmt.Printf("%-32s %14.4g  bar %.4g  %v\n", bar.name, bar.value, bar.bar, map[bool]string{true: "holds", false: "MISSED"}[holds])
		if !holds {
			failed = append(failed, bar.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		micro = append(micro, map[string]any{"name": "scale." + name, "value": others[name]})
		fmt.Printf("%-32s %14.4g\n", name, others[name])
	}
	document := map[string]any{
		"schema": "ktsn.results/1", "experiment": "scale", "command": append([]string{"bench-scale"}, os.Args[1:]...),
		"started_at":  time.Now().UTC().Format(time.RFC3339),
		"environment": map[string]any{"cpus": runtime.NumCPU(), "versions": map[string]string{"ktsn": nodeapi.Version, "go": runtime.Version()}},
		"parameters": map[string]any{"nodes": c.nodes, "pods": c.nodes * c.podsEach, "streams": c.streams(), "schedules": c.schedules,
			"pods_per_second": c.podsPerSecond, "changes_per_second": c.changesPerSecond, "agents": "played"},
		"micro": micro, "comparisons": comparisons,
	}
	content, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, append(content, '\n'), 0o644); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("bars missed: %s", strings.Join(failed, ", "))
	}
	return nil
}
