// SPDX-License-Identifier: Apache-2.0

// Package kubeconf finds the API server: by a kubeconfig file, or by the pod's service account.
package kubeconf

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Load reads the file, or (empty) takes the service account of the pod that this runs in.
func Load(file, program string) (*rest.Config, error) {
	config, err := load(file)
	if err != nil {
		return nil, err
	}
	config.UserAgent = program + "/" + nodeapi.Version
	return config, nil
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
