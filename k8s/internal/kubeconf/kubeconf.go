// SPDX-License-Identifier: Apache-2.0

// Package kubeconf finds the API server: by a kubeconfig file, or by the pod's service account.
package kubeconf

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Agent is what the node agent asks with: two clients for Kubernetes' resources, with a limit each, and one for KTSN's. The limits are
// client-go's own, 5 questions a second.
func Agent(file, program string) (own, reviews kube.API, custom dynamic.Interface, err error) {
	config, err := Load(file, program)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, into := range []*kube.API{&own, &reviews} {
		if *into, err = kube.New(config); err != nil {
			return nil, nil, nil, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	if custom, err = dynamic.NewForConfig(config); err != nil {
		return nil, nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return own, reviews, custom, nil
}

// Load finds the API server that the file names, or (empty) the pod's own.
func Load(file, program string) (*rest.Config, error) {
	config, err := load(file)
	if err == nil {
		config.UserAgent = program + "/" + nodeapi.Version
		config.Wrap(kube.CapLists)
	}
	return config, err
}

func load(file string) (*rest.Config, error) {
	if file == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig, and this is no pod with a service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", file, err)
	}
	return config, nil
}
