// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// How long ADD waits for the node agent to see a pod: the agent and the kubelet see it at the same time.
const (
	policyPatience = 2 * time.Second
	policyPause    = 50 * time.Millisecond
)

// policies is what the node agent knows of network policies, in RUN_DIR/policies.json (internal/policyfile, which brings all types
// of the API server: too much to load for every pod).
type policies struct {
	Synced bool                `json:"synced"`
	Unread string              `json:"unread"`
	Every  map[string][]string `json:"every"` // that select all pods of a namespace; "": of all namespaces
	Pods   map[string]struct {
		UID     string   `json:"uid"`
		Egress  []string `json:"policies"`
		Ingress []string `json:"ingress"`
	} `json:"pods"` // of this node, by namespace/name
}

// refuseByPolicy refuses a pod that an egress policy selects: datagrams that leave by the uplink pass no policy engine. It also refuses a pod with the
// ingress fast path that an ingress policy selects, and a pod of which the policies are not known. Outside Kubernetes there are no policies.
func refuseByPolicy(conf *cniconf.Conf, runDir string) error {
	attachment := conf.Attachment.Read()
	if conf.Pod.Name == "" || conf.Policies == "ignore" || attachment.AllowPolicyBypass {
		return nil
	}
	for end := time.Now().Add(policyPatience); ; time.Sleep(policyPause) {
		known, names, doubt := verdict(filepath.Join(runDir, "policies.json"), conf.Pod, attachment.Ingress == "short")
		switch {
		case known && len(names) == 0:
			return nil
		case known:
			return failure(codePolicy, "%s selects pod %s/%s, and KTSN's datagrams pass no policy engine: "+
				"set allow_policy_bypass (and destinations) in the network's configuration, or exempt the pod",
				strings.Join(names, ", "), conf.Pod.Namespace, conf.Pod.Name)
		case time.Now().After(end):
			return failure(types.ErrTryAgainLater, "it is not known whether a network policy selects pod %s/%s: %s "+
				"(without a node agent: policies = ignore in the network's configuration)",
				conf.Pod.Namespace, conf.Pod.Name, doubt)
		}
	}
}

// verdict reads the policies that select the pod; where the file does not say, known is false and doubt is the reason. Ingress policies count for
// the ingress fast path alone.
func verdict(path string, pod cniconf.Pod, isShort bool) (known bool, names []string, doubt string) {
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
	if all.Unread != "" {
		return false, nil, "the node agent cannot read all policies: " + all.Unread
	}
	if every := slices.Concat(all.Every[""], all.Every[pod.Namespace]); len(every) > 0 {
		return true, every, ""
	}
	// An entry of this very pod shows that the agent has seen it, and its policies with it: a file that a dead agent left says nothing
	// about newer pods. The name alone may be that of a pod before it.
	found, ok := all.Pods[pod.Namespace+"/"+pod.Name]
	if !ok || (pod.UID != "" && found.UID != pod.UID) {
		return false, nil, "the node agent has not seen the pod yet: does it run, and does it see the API server?"
	}
	for _, name := range found.Egress {
		names = append(names, "egress NetworkPolicy "+name)
	}
	for _, name := range found.Ingress {
		if isShort {
			names = append(names, "ingress NetworkPolicy "+name)
		}
	}
	return true, names, ""
}
