// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
)

// The controller's program stays far below the chart's limit of 256 MiB while users' Streams of 75 MB come in.
func TestLongObjectsFillNoMemory(t *testing.T) {
	arguments := []string{"--leader-elect=false", "--tsn-cidr=10.99.0.0/16", "--listen="}
	peak, said := kubetest.PeakOf(t, "ktsn-controller", arguments, "streams", "pods")
	if most := 192 << 10; peak > most {
		t.Errorf("%d MiB were resident, at most %d are expected", peak>>10, most>>10)
	}
	// What is long is nothing that is kept.
	if strings.Contains(said, "more than is kept") {
		t.Error(said)
	}
}
