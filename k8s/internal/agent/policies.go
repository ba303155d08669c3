// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"time"

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
		file := policyfile.Make(a.config.NodeName, a.policies.List(), a.pods.List(), a.othersNow())
		a.setPart(partPolicy, a.writePolicies(&written, file))
		poke(a.restrictChanged)
	})
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
