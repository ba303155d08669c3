// SPDX-License-Identifier: Apache-2.0

// Package kubeconf finds the API server: by a kubeconfig file, or by the pod's service account.
package kubeconf

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Clients of the API server that the file names, or (empty) of the pod's own: for Kubernetes' resources, and for KTSN's.
func Clients(file, program string) (kubernetes.Interface, dynamic.Interface, error) {
	config, err := load(file)
	if err != nil {
		return nil, nil, err
	}
	config.UserAgent = program + "/" + nodeapi.Version
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return kube, custom, nil
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
