// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

// A namespace with more policies than the agent keeps counts as one with a policy about every pod; the others are read as ever.
func TestTooManyPoliciesCloseTheirOwnNamespace(t *testing.T) {
	var objects []apiruntime.Object
	for number := range policiesBound.Objects + 1 {
		objects = append(objects, &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "many", Name: fmt.Sprint("p", number)}})
	}
	b := newBench(t, nil, nil, objects...)
	b.attachedPod("talker", "")
	b.start()
	var file policyfile.File
	b.eventually("the file is written", func() bool {
		return readJSON(filepath.Join(b.config.RunDir, policyfile.Name), &file) == nil && file.Synced
	})
	if said := file.Every["many"]; len(said) != 1 || !strings.Contains(said[0], "more than 1000 objects") || len(file.Every) != 1 {
		t.Errorf("%v", file.Every)
	}
	if pod, has := file.Pods["a/talker"]; !has || len(pod.Policies)+len(pod.Ingress) > 0 {
		t.Errorf("%+v", file.Pods)
	}
}

// The agent's program stays far below the chart's limit of 256 MiB while users' objects of 200 MB come in.
func TestLongObjectsFillNoMemory(t *testing.T) {
	arguments := []string{"--node-name=kn1", "--overlay=false", "--install-from=", "--listen=", "--uplink=lo"}
	for _, name := range []string{"run-dir", "kubelet-dir", "lib-dir", "cni-bin-dir", "cni-state-dir", "cdi-dir"} {
		arguments = append(arguments, "--"+name+"="+t.TempDir())
	}
	peak, said := kubetest.PeakOf(t, "ktsn-node-agent", arguments, "networkpolicies", "streams")
	if most := 160 << 10; peak > most {
		t.Errorf("%d MiB were resident, at most %d are expected", peak>>10, most>>10)
	}
	// What is long is nothing that is kept.
	if strings.Contains(said, "more than is kept") {
		t.Error(said)
	}
}
