// SPDX-License-Identifier: Apache-2.0

// Bench-scale fills a real API server with a large cluster and measures what ktsn-controller makes of it.
//
// In: a kubeconfig of an API server that serves nothing else, with KTSN's CRDs; the process number of a ktsn-controller on it. Out: a
// ktsn.results/1 document. There are no kubelets and no ktsnd: the Nodes' agents are played here, which write what real ones write, as
// often as real ones do. What the API server and etcd do is real.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	var s size
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `FILE` of the API server")
	pid := flag.Int("controller", 0, "process `number` of ktsn-controller")
	file := flag.String("json", "out/bench/scale.json", "where the document goes")
	flag.IntVar(&s.nodes, "nodes", 2000, "Nodes")
	flag.IntVar(&s.podsEach, "pods", 10, "TSN pods on each Node")
	flag.IntVar(&s.streamsEach, "streams", 5, "Streams of each Node's pods")
	flag.IntVar(&s.schedules, "schedules", 50, "GateSchedules, each for its share of the Nodes")
	flag.DurationVar(&s.idle, "idle", 60*time.Second, "how long nothing changes")
	flag.DurationVar(&s.churn, "churn", 60*time.Second, "how long pods are replaced, and Streams changed")
	flag.IntVar(&s.podsPerSecond, "pods-per-second", 20, "pods replaced a second meanwhile")
	flag.IntVar(&s.changesPerSecond, "changes-per-second", 4, "Streams changed a second meanwhile")
	flag.Parse()
	if err := run(*kubeconfig, *pid, s, *file); err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

func run(kubeconfig string, pid int, s size, file string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("-kubeconfig: %w", err)
	}
	config.QPS = -1 // the API server's own limits are the only ones
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	c := &cluster{size: s, kube: kube, custom: custom, asked: map[string]time.Time{}, counted: map[string]time.Duration{}}
	p := &process{pid: pid}
	if _, err := p.usage(); err != nil {
		return fmt.Errorf("-controller: %w", err)
	}
	began := time.Now()
	if err := c.fill(ctx); err != nil {
		return err
	}
	filled := time.Since(began)
	if err := c.settled(ctx); err != nil {
		return err
	}
	accepted := time.Since(began)
	if err := c.follow(ctx); err != nil {
		return err
	}
	say("all %d Streams accepted %.0f s after the first object", c.streams(), accepted.Seconds())
	idle, err := measured(ctx, c, p, s.idle, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	if err != nil {
		return err
	}
	say("idle: %.2f API writes a second, controller %.1f %% of a CPU", idle.writesPerSecond, 100*idle.cpuShare)
	churn, err := measured(ctx, c, p, s.churn, c.change)
	if err != nil {
		return err
	}
	spans, lost := c.verdicts(ctx)
	return report(file, c, filled, accepted, idle, churn, spans, lost)
}

func say(format string, arguments ...any) {
	fmt.Printf("%s %s\n", time.Now().UTC().Format("15:04:05"), strings.TrimSpace(fmt.Sprintf(format, arguments...)))
}
