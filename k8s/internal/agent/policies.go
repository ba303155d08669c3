// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

const (
	// policyEvery is how often attachments that are new are looked for: a policy is in force two seconds after it came, whatever
	// was attached meanwhile.
	policyEvery = time.Second
	policyQuiet = 20 * time.Millisecond
)

// policyLoop writes policies.json for the next attachment. Until everything was seen once, the file says that nothing is known.
// It never waits for ktsnd: ADD waits for this file.
func (a *Agent) policyLoop(ctx context.Context) {
	if a.dynamic != nil {
		go a.others.run(ctx, a.kube, a.dynamic, a.config.Log, func() { poke(a.policyChanged) })
	}
	var written policyfile.File
	a.every(ctx, partPolicy, always(policyEvery), a.policyChanged, func(ctx context.Context) {
		if a.parts.get(partAPI) != nil {
			file := policyfile.File{Node: a.config.NodeName}
			err := errors.New("the API server's NetworkPolicies and Pods were not seen yet")
			a.setPart(partPolicy, errors.Join(a.writePolicies(&written, file), err))
			return
		}
		settle(ctx, a.policyChanged, policyQuiet)
		policies, pods, err := a.seen()
		if err == nil {
			err = a.writePolicies(&written, policyfile.Make(a.config.NodeName, policies, pods, a.others.now()))
		}
		a.setPart(partPolicy, err)
		poke(a.restrictChanged)
	})
}

// seen are the policies of all namespaces and the pods of this node.
func (a *Agent) seen() ([]*networking.NetworkPolicy, []*corev1.Pod, error) {
	policies, err := a.policies.List(labels.Everything())
	pods, errPods := a.pods.List(labels.Everything())
	return policies, pods, errors.Join(err, errPods)
}

// writePolicies writes the file where it says something else than before.
func (a *Agent) writePolicies(written *policyfile.File, file policyfile.File) error {
	path := filepath.Join(a.config.RunDir, policyfile.Name)
	if reflect.DeepEqual(*written, file) && nodefile.Exists(path) {
		return nil
	}
	err := nodefile.WriteJSON(path, file)
	if err == nil {
		*written = file
	}
	return err
}
