// SPDX-License-Identifier: Apache-2.0

// Command flannel is Flannel's own kube subnet manager and its vxlan and host-gw backends, without the backends of cloud
// providers: upstream's main imports all of them, and the module of one is not to be had.
//
// In: NODE_NAME in the environment; a kubeconfig, net-conf.json, the uplink and the subnet file as arguments. Out: the
// node's lease, the device flannel.1, the subnet file. It must never differ from flanneld in what it does to the network.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"k8s.io/klog/v2"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: NODE_NAME=node flannel KUBECONFIG NET_CONF INTERFACE SUBNET_FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		klog.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, netConf, device, subnetFile string) error {
	manager, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, false)
	if err != nil {
		return fmt.Errorf("subnet manager: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", netConf, err)
	}
	family, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return fmt.Errorf("%s: %w", netConf, err)
	}
	uplink, err := ipmatch.LookupExtIface(device, "", "", family, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("interface %s: %w", device, err)
	}
	chosen, err := backend.NewManager(ctx, manager, uplink).GetBackend(config.BackendType)
	if err != nil {
		return fmt.Errorf("backend %s: %w", config.BackendType, err)
	}
	var tasks sync.WaitGroup
	network, err := chosen.RegisterNetwork(ctx, &tasks, config)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	lease := network.Lease()
	if err := manager.HandleSubnetFile(subnetFile, config, false, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("%s: %w", subnetFile, err)
	}
	klog.Infof("subnet %s, MTU %d", lease.Subnet, network.MTU())
	go func() {
		if err := manager.CompleteLease(ctx, lease, &tasks); err != nil {
			klog.Errorf("lease: %v", err)
		}
	}()
	network.Run(ctx)
	tasks.Wait()
	return nil
}
