// SPDX-License-Identifier: Apache-2.0

// Command ktsn-node-agent is KTSN's part of one Kubernetes node: `ktsn-node-agent --help`.
package main

import (
	"context"
	"os"

	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/command"
	"ktsn.io/ktsn/k8s/internal/kubeconf"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

const program = "ktsn-node-agent"

func main() {
	config, err := agent.Parse(os.Args[1:], os.Getenv, os.Stderr)
	command.Begin(program, err)
	command.Run(config.Log, func(ctx context.Context) error { return run(ctx, config) })
}

func run(ctx context.Context, config agent.Config) error {
	kube, custom, err := kubeconf.Clients(config.Kubeconfig, program)
	if err != nil {
		return err
	}
	reviews, _, err := kubeconf.Clients(config.Kubeconfig, program) // with a limit of its own: others ask by it
	if err != nil {
		return err
	}
	daemon := nodeapi.New(config.RunDir)
	defer daemon.Close()
	var network *overlaynet.Network
	if config.Overlay {
		if network, err = overlaynet.New(config.Network); err != nil {
			return err
		}
		defer network.Close()
	}
	return agent.New(config, kube, reviews, custom, daemon, network).Run(ctx)
}
