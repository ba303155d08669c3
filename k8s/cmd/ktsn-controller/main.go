// SPDX-License-Identifier: Apache-2.0

// Command ktsn-controller is KTSN's part of the whole cluster: `ktsn-controller --help`.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"ktsn.io/ktsn/k8s/internal/command"
	"ktsn.io/ktsn/k8s/internal/controller"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
)

const program = "ktsn-controller"

// writesMax a second, for Streams and for all else: 2,000 new Nodes have their prefixes within a minute.
const writesMax = 50

const help = `ktsn-controller: KTSN's part of the whole cluster

It gives each Node its prefixes of the TSN network (annotation ktsn.io/tsn-prefixes), rolls GateSchedules out to all of
their nodes or to none, and says of each Stream whether the schedules have room for it. Several may run: one leads. Every flag can be given in the environment too: --tsn-cidr as KTSN_TSN_CIDR.

Examples:
  ktsn-controller --tsn-cidr 10.99.0.0/16,fd99::/48
  ktsn-controller --kubeconfig ~/.kube/config --tsn-cidr 10.99.0.0/16 --prefix-length-ipv4 25 --leader-elect=false

Flags:
`

type config struct {
	kubeconfig, namespace, lease, identity, listen string
	elect                                          bool
	work                                           controller.Config
}

func main() {
	c, err := parse(os.Args[1:], os.Getenv, os.Stderr)
	command.Begin(program, err)
	command.Run(c.work.Log, func(ctx context.Context) error { return run(ctx, c) })
}

func parse(arguments []string, environment func(string) string, output io.Writer) (config, error) {
	c := config{work: controller.Config{Rollouts: rollout.Defaults}}
	host, _ := os.Hostname()
	set := command.NewLine(program, help, environment, output)
	or := func(name, fallback string) string {
		if value := environment(name); value != "" {
			return value
		}
		return fallback
	}
	set.StringVar(&c.kubeconfig, "kubeconfig", environment("KUBECONFIG"), "kubeconfig `FILE`; empty: the pod's service account")
	cidrs := set.String("tsn-cidr", "", "the TSN network's `prefixes`, the same as the agents'; empty: none are assigned")
	set.IntVar(&c.work.Prefixes.IPv4, "prefix-length-ipv4", 24, "length of a node's IPv4 prefix")
	set.IntVar(&c.work.Prefixes.IPv6, "prefix-length-ipv6", 64, "length of a node's IPv6 prefix")
	set.BoolVar(&c.elect, "leader-elect", true, "work only while this one leads")
	set.StringVar(&c.namespace, "lease-namespace", or("POD_NAMESPACE", "kube-system"), "`namespace` of the lease (POD_NAMESPACE)")
	set.StringVar(&c.lease, "lease-name", "ktsn-controller", "`name` of the lease")
	set.StringVar(&c.identity, "identity", or("POD_NAME", fmt.Sprintf("%s_%d", host, os.Getpid())), "who this is in the lease (POD_NAME)")
	set.DurationVar(&c.work.Rollouts.CheckMax, "check-timeout", c.work.Rollouts.CheckMax, "nodes have so long to answer the check of a GateSchedule")
	set.DurationVar(&c.work.Rollouts.Margin, "rollout-margin", c.work.Rollouts.Margin, "from the decision to ConfigChangeTime; one second of it is for taking it back")
	set.DurationVar(&c.work.HandOver, "hand-over", controller.HandOverLeast, "kept free in front of the frames of each window when Streams are judged")
	set.StringVar(&c.listen, "listen", "127.0.0.1:9189", "`address` of /metrics, /readyz and /livez; empty: none")
	var err error
	if c.work.Log, err = set.Read(arguments); err != nil {
		return c, err
	}
	if c.work.Prefixes.CIDRs, err = overlaynet.ParsePrefixes("--tsn-cidr", *cidrs); err != nil {
		return c, err
	}
	if err := overlaynet.CheckFree(c.work.Prefixes.CIDRs, overlaynet.ServiceClaim(environment)); err != nil {
		return c, err
	}
	if c.work.Rollouts.CheckMax < time.Second || c.work.Rollouts.CheckMax > time.Hour {
		return c, fmt.Errorf("--check-timeout: found %s, expected 1s to 1h", c.work.Rollouts.CheckMax)
	}
	if c.work.Rollouts.Margin < 2*time.Second || c.work.Rollouts.Margin > time.Hour {
		return c, fmt.Errorf("--rollout-margin: found %s, expected 2s to 1h", c.work.Rollouts.Margin)
	}
	if c.work.HandOver < controller.HandOverLeast || c.work.HandOver > time.Second {
		return c, fmt.Errorf("--hand-over: found %s, expected %s (ktsnd's own guess before it has measured) to 1s", c.work.HandOver, controller.HandOverLeast)
	}
	return c, c.work.Prefixes.Check()
}

func run(ctx context.Context, c config) error {
	kube, custom, err := controller.Clients(c.kubeconfig, program, writesMax)
	if err != nil {
		return err
	}
	_, slow, err := controller.Clients(c.kubeconfig, program, writesMax) // with a limit of its own
	if err != nil {
		return err
	}
	work := controller.New(kube, custom, slow, c.work)
	if err := listen(c, work); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	if !work.Follow(ctx, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}) {
		return nil
	}
	if !c.elect {
		work.Lead(ctx, changed)
		return nil
	}
	return lead(ctx, c, kube, func(ctx context.Context) { work.Lead(ctx, changed) })
}

// lead works while this one holds the lease. Who has lost it ends: what it was about to write must not be written.
func lead(ctx context.Context, c config, kube kubernetes.Interface, work func(context.Context)) error {
	lost := false
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.lease}, Client: kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: work,
			OnStoppedLeading: func() { lost = ctx.Err() == nil },
			OnNewLeader:      func(name string) { c.work.Log.Info("leader", "name", name) },
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	if lost {
		return fmt.Errorf("the lease %s/%s was lost: another one leads, or the API server was away", c.namespace, c.lease)
	}
	return nil
}

func listen(c config, work *controller.Controller) error {
	if c.listen == "" {
		return nil
	}
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	server := &http.Server{Handler: handler(work), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second}
	go func() { _ = server.Serve(listener) }() // ends with the process
	return nil
}

func handler(work *controller.Controller) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(work.Registry(), promhttp.HandlerOpts{}))
	for path, fault := range map[string]func() error{"/livez": work.Stuck, "/readyz": work.Fault} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if err := fault(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	return mux
}
