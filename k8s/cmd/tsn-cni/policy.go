// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// How long ADD waits for the node agent to know a pod: it hears of it at the same time as kubelet.
const (
	policyPatience = 2 * time.Second
	policyPause    = 50 * time.Millisecond
)

// Policies is what the node agent knows of egress NetworkPolicies, in RUN_DIR/policies.json (internal/policyfile, which brings all types
// of the API server: too much to load for every pod).
type policies struct {
	Synced     bool                `json:"synced"`
	Namespaces map[string][]string `json:"namespaces"` // those with any
	Pods       map[string]struct {
		UID      string   `json:"uid"`
		Policies []string `json:"policies"`
	} `json:"pods"` // of this node, by namespace/name
}

// Admit refuses a pod that an egress NetworkPolicy selects: datagrams that leave by the uplink pass no policy engine. Not knowing is
// refused as well; outside Kubernetes there are no policies.
func admit(conf *cniconf.Conf, runDir string) error {
	if conf.Pod.Name == "" || conf.Policies == "ignore" || isTrue(conf.Attachment.AllowPolicyBypass) {
		return nil
	}
	for end := time.Now().Add(policyPatience); ; time.Sleep(policyPause) {
		known, names, doubt := verdict(filepath.Join(runDir, "policies.json"), conf.Pod)
		switch {
		case known && len(names) == 0:
			return nil
		case known:
			return failure(codePolicy, "egress NetworkPolicy %s selects pod %s/%s, and KTSN's datagrams pass no policy engine: "+
				"set allow_policy_bypass (and destinations) in the network's configuration, or exempt the pod",
				strings.Join(names, ", "), conf.Pod.Namespace, conf.Pod.Name)
		case time.Now().After(end):
			return failure(types.ErrTryAgainLater, "nobody knows whether an egress NetworkPolicy selects pod %s/%s: %s "+
				"(without a node agent: policies = ignore in the network's configuration)",
				conf.Pod.Namespace, conf.Pod.Name, doubt)
		}
	}
}

// Verdict: whether the file tells, and the policies that select the pod; otherwise why it does not.
func verdict(path string, pod cniconf.Pod) (known bool, names []string, doubt string) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil, "no " + path + ": does the node agent run?"
	}
	var all policies
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		return false, nil, fmt.Sprintf("%s: %v", path, err)
	}
	if !all.Synced {
		return false, nil, "the node agent does not see the API server's policies yet"
	}
	// The name alone may be that of a pod before it.
	if found, ok := all.Pods[pod.Namespace+"/"+pod.Name]; ok && (pod.UID == "" || found.UID == pod.UID) {
		return true, found.Policies, ""
	}
	if len(all.Namespaces[pod.Namespace]) == 0 {
		return true, nil, ""
	}
	return false, nil, "the node agent does not know the pod yet, and its namespace has egress policies"
}

func isTrue(value *bool) bool { return value != nil && *value }
