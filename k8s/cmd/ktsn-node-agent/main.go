// SPDX-License-Identifier: Apache-2.0

// Command ktsn-node-agent is KTSN's part of one Kubernetes node: `ktsn-node-agent --help`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/kubeconf"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Exit statuses, as ktsn's.
const (
	failed     = 1
	wrongUsage = 2
)

func main() {
	config, err := agent.Parse(os.Args[1:], agent.Environment, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ktsn-node-agent:", err)
		os.Exit(wrongUsage)
	}
	if config.Version {
		fmt.Println("ktsn-node-agent", nodeapi.Version)
		return
	}
	if err := run(config); err != nil {
		config.Log.Error("ended", "error", err)
		os.Exit(failed)
	}
}

func run(config agent.Config) error {
	klog.SetSlogLogger(config.Log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rest, err := kubeconf.Load(config.Kubeconfig, "ktsn-node-agent")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	custom, err := dynamic.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	daemon, err := nodeapi.New(config.RunDir)
	if err != nil {
		return err
	}
	defer daemon.Close()
	var network *overlaynet.Network
	if config.Overlay {
		if network, err = overlaynet.New(config.Network); err != nil {
			return err
		}
		defer network.Close()
	}
	return agent.New(config, kube, custom, daemon, network).Run(ctx)
}
