// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"ktsn.io/ktsn/k8s/internal/kubeconf"
)

// Clients of the API server that the file names, or (empty) of the pod's own: for Kubernetes' resources, and for KTSN's. Each asks at most
// `perSecond` times a second, and twice as often for a moment.
func Clients(file, program string, perSecond float32) (kubernetes.Interface, dynamic.Interface, error) {
	config, err := kubeconf.Load(file, program)
	if err != nil {
		return nil, nil, err
	}
	config.QPS, config.Burst = perSecond, int(2*perSecond)
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
