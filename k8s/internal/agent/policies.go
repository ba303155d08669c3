// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

const (
	// policyEvery is how often attachments that are new are looked for: a policy is in force two seconds after it came, whatever
	// was attached meanwhile.
	policyEvery = time.Second
	policyQuiet = 20 * time.Millisecond
	policyMax   = 2 * time.Second
	// policyAgain is how often everything is said again, whoever forgot it.
	policyAgain = 30 * time.Second
)

// restricted is what ktsnd was told of its attachments.
type restricted struct {
	told map[string]policyfile.Restriction
	at   time.Time // when all of it was said anew
	file policyfile.File
}

// policyLoop writes policies.json for the next attachment, and tells ktsnd what policies leave of those that exist. Until everything
// was seen once, the file says that nothing is known, and ktsnd keeps what it knows.
func (a *Agent) policyLoop(ctx context.Context) {
	if a.dynamic != nil {
		go a.others.run(ctx, a.kube.Discovery(), a.dynamic, a.config.Log, func() { poke(a.policyChanged) })
	}
	var known restricted
	a.every(ctx, partPolicy, always(policyEvery), a.policyChanged, func(ctx context.Context) {
		isSynced := a.parts.get(partAPI) == nil
		if !isSynced {
			file := policyfile.File{Node: a.config.NodeName}
			err := errors.New("the API server's NetworkPolicies and Pods were not seen yet")
			a.tell(partPolicy, errors.Join(a.writePolicies(&known, file), err))
			return
		}
		settle(ctx, a.policyChanged, policyQuiet)
		policies, err := a.policies.List(labels.Everything())
		pods, errPods := a.pods.List(labels.Everything())
		if err = errors.Join(err, errPods); err != nil {
			a.tell(partPolicy, err)
			return
		}
		others := a.others.now()
		err = a.writePolicies(&known, policyfile.Make(a.config.NodeName, policies, pods, others))
		a.tell(partPolicy, errors.Join(err, a.restrict(ctx, &known, policies, pods, others)))
	})
}

// writePolicies writes the file where it says something else than before.
func (a *Agent) writePolicies(known *restricted, file policyfile.File) error {
	path := filepath.Join(a.config.RunDir, policyfile.Name)
	if reflect.DeepEqual(known.file, file) && nodefile.Exists(path) {
		return nil
	}
	err := nodefile.WriteJSON(path, file)
	if err == nil {
		known.file = file
	}
	return err
}

// restrict tells ktsnd what policies leave of each attachment, where that is not what it was told last. Of a pod that is not known
// nothing is said: what ktsnd knows of its attachment holds.
func (a *Agent) restrict(ctx context.Context, known *restricted, policies []*networking.NetworkPolicy, pods []*corev1.Pod,
	others policyfile.Others) error {
	if now := time.Now(); known.told == nil || now.Sub(known.at) > policyAgain {
		known.told, known.at = map[string]policyfile.Restriction{}, now
	}
	byName := map[string]*corev1.Pod{}
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	states, _ := cnistate.Open(a.config.CNIStateDir).List() // of broken ones tsn-cni tells
	request, said := &nodeapi.SetPoliciesRequest{}, map[string]policyfile.Restriction{}
	for _, state := range states {
		pod := byName[state.Pod.Namespace+"/"+state.Pod.Name]
		if state.Attachment == "" || state.Policies == "ignore" || pod == nil ||
			(state.Pod.UID != "" && state.Pod.UID != policyfile.UIDOf(pod)) {
			continue
		}
		now := policyfile.Restrict(pod, policies, others)
		if before, isTold := known.told[state.Attachment]; !isTold || !before.Equal(now) {
			request.Policies, said[state.Attachment] = append(request.Policies, message(state.Attachment, now)), now
		}
	}
	if len(request.Policies) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, policyMax)
	defer cancel()
	reply, err := a.daemon.SetPolicies(ctx, request)
	if err != nil {
		known.told = nil // what came of it is not known
		return fmt.Errorf("ktsnd was not told of network policies: %w", err)
	}
	// An attachment that is not there yet is told of again.
	for _, name := range reply.GetUnknown() {
		delete(said, name)
	}
	for name, restriction := range said {
		before := known.told[name]
		known.told[name] = restriction
		if restriction.Reason != before.Reason {
			a.config.Log.Info("network policies", "attachment", name, "policies", restriction.Reason,
				"egress_restricted", restriction.EgressRestricted, "ingress_blocked", restriction.IngressBlocked)
		}
	}
	return nil
}

func message(attachment string, of policyfile.Restriction) *nodeapi.AttachmentPolicy {
	policy := &nodeapi.AttachmentPolicy{
		Attachment: attachment, EgressRestricted: of.EgressRestricted, IngressBlocked: of.IngressBlocked, Reason: of.Reason,
	}
	if of.EgressRestricted {
		for _, prefix := range of.EgressAllowed {
			policy.EgressAllowed = append(policy.EgressAllowed, prefix.String())
		}
	}
	return policy
}
