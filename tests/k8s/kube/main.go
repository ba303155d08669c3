// SPDX-License-Identifier: Apache-2.0

// Command kube is Kubernetes in one binary, for the test cluster: kube-apiserver, kube-controller-manager,
// kube-scheduler, kube-proxy, kubelet and kubectl, chosen by the name it is called by. One link instead of five saves
// minutes of a cold build. In: argv. Out: the component's own behaviour. It must never change what a component does.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// component is the cobra command of the program called name; nil for a name that is none of ours.
func component(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kubectl" { // it exits with its own codes
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	command := component(name)
	if command == nil {
		fmt.Fprintf(os.Stderr, "%s: call me by a link named kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, kubelet or kubectl\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
