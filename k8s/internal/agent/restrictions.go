// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

const (
	// One call to ktsnd takes so long at most and is so long; ktsnd refuses requests of 4 MiB.
	restrictMax    = 2 * time.Second
	restrictOctets = 1 << 20
	// restrictAgain is how often all restrictions are sent again, in case ktsnd lost one.
	restrictAgain = 30 * time.Second
)

// restricted holds the known restrictions at ktsnd, by attachment.
type restricted struct {
	sent map[string]sent
	// shown is what ktsnd lists for attachments to which the agent has sent nothing. Of many prefixes ktsnd lists some.
	shown  map[string]policyfile.Restriction
	at     time.Time // when all of it was sent again
	unread string    // why not all policies are known, as it was logged last
}

// sent is the last restriction that ktsnd has accepted for an attachment.
type sent struct {
	policyfile.Restriction
	written string // the attachment's state then
}

// attachment is an attachment that follows policies, with its pod. An ADD that attaches again under the same name writes its state file again;
// ktsnd has dropped the restriction then.
type attachment struct {
	name, written string
	pod           *kinds.Pod
}

// restrictLoop sends ktsnd the restrictions of all attachments. Until the agent has seen all objects once, ktsnd keeps the restrictions that it has.
func (a *Agent) restrictLoop(ctx context.Context) {
	known := restricted{sent: map[string]sent{}}
	a.every(ctx, partRestrict, always(policyEvery), a.restrictChanged, func(ctx context.Context) {
		if a.parts.get(partAPI) != nil {
			return
		}
		a.setPart(partRestrict, a.restrict(ctx, &known, a.policies.List(), a.pods.List(), a.othersNow()))
	})
}

// restrict sends ktsnd the restrictions that differ from those that were sent last.
func (a *Agent) restrict(ctx context.Context, known *restricted, policies []*kinds.NetworkPolicy, pods []*kinds.Pod,
	others policyfile.Others) error {
	if known.unread != others.Unread && others.Unread != "" {
		a.config.Log.Warn("network policies: no restriction of an attachment ends before all policies are read", "unread", others.Unread)
	}
	known.unread = others.Unread
	isAgain := time.Since(known.at) > restrictAgain
	if isAgain {
		known.at = time.Now()
	}
	attachments, errStates := a.attached(known, pods)
	if err := a.show(ctx, known, attachments); err != nil {
		return errors.Join(err, errStates)
	}
	var due []update
	for _, one := range attachments {
		before, wasSent := known.sent[one.name]
		now, isKnown := known.next(one.name, policyfile.Restrict(one.pod, policies, others))
		if isKnown && (isAgain || !wasSent || before.written != one.written || !before.Equal(now)) {
			due = append(due, update{message(one.name, now), sent{now, one.written}})
		}
	}
	return errors.Join(a.sendAll(ctx, known, due), errStates)
}

// update is a restriction to send.
type update struct {
	message *nodeapi.AttachmentPolicy
	sent    sent
}

// sendAll sends updates in requests of a bounded length. It goes on after a refused update, and stops when ktsnd does not answer.
func (a *Agent) sendAll(ctx context.Context, known *restricted, due []update) error {
	var faults []error
	for len(due) > 0 {
		count, octets := 0, 0
		for count < len(due) && (count == 0 || octets+proto.Size(due[count].message) <= restrictOctets) {
			octets += proto.Size(due[count].message)
			count++
		}
		faults = append(faults, a.send(ctx, known, due[:count])...)
		if due = due[count:]; slices.ContainsFunc(faults, nodeapi.IsAbsent) || ctx.Err() != nil {
			known.forget(due) // so that they are sent again at once
			break
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("ktsnd has not taken all network policies: %w (%d such)", faults[0], len(faults))
}

// send makes one request. It divides a refused request, so that only the wrong update is left out.
func (a *Agent) send(ctx context.Context, known *restricted, due []update) []error {
	request := &nodeapi.SetPoliciesRequest{}
	for _, one := range due {
		request.Policies = append(request.Policies, one.message)
	}
	calling, cancel := context.WithTimeout(ctx, restrictMax)
	defer cancel()
	reply, err := a.daemon.SetPolicies(calling, request)
	switch {
	case err == nil:
		// An attachment that ktsnd does not know yet is sent again.
		a.remember(known, due, reply.GetUnknown())
		return nil
	case isRefusal(err) && len(due) > 1:
		half := len(due) / 2
		return append(a.send(ctx, known, due[:half]), a.send(ctx, known, due[half:])...)
	}
	known.forget(due) // whether ktsnd took it is not known
	return []error{fmt.Errorf("%s: %w", due[0].message.GetAttachment(), err)}
}

// isRefusal is true where ktsnd refused a request for its contents or its length.
func isRefusal(err error) bool {
	return slices.Contains([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.ResourceExhausted}, nodeapi.CodeOf(err))
}

// attached returns this node's attachments that follow policies, and forgets those that are gone. It leaves out an attachment with an unknown
// pod: ktsnd keeps its restriction. States that cannot be read are an error beside the result.
func (a *Agent) attached(known *restricted, pods []*kinds.Pod) ([]attachment, error) {
	byName := map[string]*kinds.Pod{}
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	directory := cnistate.Open(a.config.CNIStateDir)
	states, err := directory.List()
	if err != nil {
		err = fmt.Errorf("attachments without restrictions at ktsnd: %w", err)
	}
	var found []attachment
	isThere := map[string]bool{}
	for _, state := range states {
		isThere[state.Attachment] = true
		pod := byName[state.Pod.Namespace+"/"+state.Pod.Name]
		if state.Attachment != "" && state.Policies != "ignore" && pod != nil &&
			(state.Pod.UID == "" || state.Pod.UID == policyfile.UIDOf(pod)) {
			found = append(found, attachment{state.Attachment, directory.Written(state), pod})
		}
	}
	maps.DeleteFunc(known.sent, func(name string, _ sent) bool { return !isThere[name] })
	maps.DeleteFunc(known.shown, func(name string, _ policyfile.Restriction) bool { return !isThere[name] })
	return found, err
}

// show lists ktsnd's restrictions where they matter: not all policies are known, and the agent has not sent all restrictions yet.
func (a *Agent) show(ctx context.Context, known *restricted, attachments []attachment) error {
	if known.unread == "" {
		known.shown = nil
		return nil
	}
	isMissing := false
	for _, one := range attachments {
		_, wasSent := known.sent[one.name]
		_, isShown := known.shown[one.name]
		isMissing = isMissing || (!wasSent && !isShown)
	}
	if !isMissing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, restrictMax)
	defer cancel()
	list, err := a.daemon.List(ctx, &nodeapi.ListRequest{})
	if err != nil {
		return fmt.Errorf("ktsnd does not send which restrictions hold: %w", err)
	}
	known.shown = map[string]policyfile.Restriction{}
	for _, one := range list.GetAttachments() {
		known.shown[one.GetName()] = restrictionOf(one.GetPolicy())
	}
	return nil
}

// next returns the restriction to send for an attachment; false: nothing yet. While not all policies are known, it never allows more than the
// restriction at ktsnd, which may stem from a policy that the agent has not read yet.
func (r *restricted) next(name string, now policyfile.Restriction) (policyfile.Restriction, bool) {
	if r.unread == "" {
		return now, true
	}
	if before, wasSent := r.sent[name]; wasSent {
		return before.Restriction.And(now), true
	}
	before, isShown := r.shown[name]
	next := before.And(now)
	// A shown restriction is not sent back: it may be shortened.
	return next, isShown && !next.Equal(before)
}

// forget drops updates when it is not known whether ktsnd took them.
func (r *restricted) forget(due []update) {
	for _, one := range due {
		delete(r.sent, one.message.GetAttachment())
		delete(r.shown, one.message.GetAttachment())
	}
}

// remember stores the updates that ktsnd took: all but those of attachments that it does not know.
func (a *Agent) remember(known *restricted, said []update, unknown []string) {
	for _, one := range said {
		name, restriction := one.message.GetAttachment(), one.sent
		if slices.Contains(unknown, name) {
			continue
		}
		before := known.sent[name]
		known.sent[name] = restriction
		if restriction.Reason != before.Reason {
			a.config.Log.Info("network policies", "attachment", name, "policies", restriction.Reason,
				"egress_restricted", restriction.EgressRestricted, "ingress_blocked", restriction.IngressBlocked)
		}
	}
}

// restrictionOf reads a restriction that ktsnd lists; nil: none.
func restrictionOf(policy *nodeapi.AttachmentPolicy) policyfile.Restriction {
	restriction := policyfile.Restriction{
		EgressRestricted: policy.GetEgressRestricted(), IngressBlocked: policy.GetIngressBlocked(), Reason: policy.GetReason(),
	}
	for _, text := range policy.GetEgressAllowed() {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			restriction.EgressAllowed = append(restriction.EgressAllowed, prefix)
		}
	}
	return restriction
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
