// SPDX-License-Identifier: Apache-2.0

// Command ktsn-node-agent is KTSN's part of one Kubernetes node: `ktsn-node-agent --help`.
package main

import (
	"context"
	"os"
	"path/filepath"

	"ktsn.io/ktsn/k8s/internal/agent"
	"ktsn.io/ktsn/k8s/internal/command"
	"ktsn.io/ktsn/k8s/internal/kubeconf"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodeonce"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/respawn"
)

const program = "ktsn-node-agent"

func main() {
	if filepath.Base(os.Args[0]) == respawn.Name {
		respawn.Main(os.Args[1:]) // one file in the node's image
	}
	if len(os.Args) > 1 && nodeonce.Verbs[os.Args[1]] != "" {
		once(os.Args[1])
		return
	}
	config, err := agent.Parse(os.Args[1:], os.Getenv, os.Stderr)
	command.Begin(program, err)
	command.Run(config.Log, func(ctx context.Context) error { return run(ctx, config) })
}

// once does what `ktsn k8s` asks of this node, and ends.
func once(verb string) {
	config, err := nodeonce.Parse(verb, os.Args[2:], os.Getenv, os.Stderr)
	command.Begin(program, err)
	var lines []string
	if verb == "probe" {
		lines = nodeonce.Probe(config)
	} else {
		lines = nodeonce.Remove(context.Background(), config)
	}
	if err := nodeonce.Say(lines, os.Stdout, nodeonce.Message); err != nil {
		command.Begin(program, err)
	}
}

func run(ctx context.Context, config agent.Config) error {
	kube, reviews, custom, err := kubeconf.Agent(config.Kubeconfig, program)
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
