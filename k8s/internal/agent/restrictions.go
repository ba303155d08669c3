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
	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

const (
	// One call to ktsnd takes so long at most and is so long; ktsnd refuses requests of 4 MiB.
	restrictMax    = 2 * time.Second
	restrictOctets = 1 << 20
	// restrictAgain is how often everything is said again, whoever forgot it.
	restrictAgain = 30 * time.Second
)

// restricted is what is known of ktsnd's restrictions, by attachment.
type restricted struct {
	told map[string]told
	// shown is what ktsnd said where nothing was told. Of many prefixes it shows some.
	shown  map[string]policyfile.Restriction
	at     time.Time // when all of it was said again
	unread string    // why not all policies are known, as it was logged last
}

// told is what ktsnd was told of an attachment.
type told struct {
	policyfile.Restriction
	written string // the attachment's state then
}

// attachment is one that follows policies, with its pod. An ADD that attaches again under the same name writes its state again, and
// ktsnd has forgotten the restriction.
type attachment struct {
	name, written string
	pod           *corev1.Pod
}

// restrictLoop tells ktsnd what policies leave of the attachments that exist. Until everything was seen once, ktsnd keeps what it knows.
func (a *Agent) restrictLoop(ctx context.Context) {
	known := restricted{told: map[string]told{}}
	a.every(ctx, partRestrict, always(policyEvery), a.restrictChanged, func(ctx context.Context) {
		if a.parts.get(partAPI) != nil {
			return
		}
		policies, pods, err := a.seen()
		if err == nil {
			err = a.restrict(ctx, &known, policies, pods, a.others.now())
		}
		a.tell(partRestrict, err)
	})
}

// restrict tells ktsnd what policies leave of each attachment, where that is not what it was told last.
func (a *Agent) restrict(ctx context.Context, known *restricted, policies []*networking.NetworkPolicy, pods []*corev1.Pod,
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
	var due []saying
	for _, one := range attachments {
		before, isTold := known.told[one.name]
		now, isKnown := known.next(one.name, policyfile.Restrict(one.pod, policies, others))
		if isKnown && (isAgain || !isTold || before.written != one.written || !before.Equal(now)) {
			due = append(due, saying{message(one.name, now), told{now, one.written}})
		}
	}
	return errors.Join(a.sayAll(ctx, known, due), errStates)
}

// saying is what ktsnd is going to be told of one attachment.
type saying struct {
	message *nodeapi.AttachmentPolicy
	told    told
}

// sayAll tells ktsnd in requests of a bounded length. It goes on after one that was refused, and ends when ktsnd does not answer.
func (a *Agent) sayAll(ctx context.Context, known *restricted, due []saying) error {
	var faults []error
	for len(due) > 0 {
		count, octets := 0, 0
		for count < len(due) && (count == 0 || octets+proto.Size(due[count].message) <= restrictOctets) {
			octets += proto.Size(due[count].message)
			count++
		}
		faults = append(faults, a.say(ctx, known, due[:count])...)
		if due = due[count:]; slices.ContainsFunc(faults, nodeapi.IsAbsent) || ctx.Err() != nil {
			known.forget(due) // so that they come again at once
			break
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("ktsnd was not told of all network policies: %w (%d such)", faults[0], len(faults))
}

// say makes one request; one that is refused is divided, so that only what is wrong is left out.
func (a *Agent) say(ctx context.Context, known *restricted, due []saying) []error {
	request := &nodeapi.SetPoliciesRequest{}
	for _, one := range due {
		request.Policies = append(request.Policies, one.message)
	}
	calling, cancel := context.WithTimeout(ctx, restrictMax)
	defer cancel()
	reply, err := a.daemon.SetPolicies(calling, request)
	switch {
	case err == nil:
		// An attachment that is not there yet is told of again.
		a.remember(known, due, reply.GetUnknown())
		return nil
	case isRefusal(err) && len(due) > 1:
		half := len(due) / 2
		return append(a.say(ctx, known, due[:half]), a.say(ctx, known, due[half:])...)
	}
	known.forget(due) // what came of it is not known
	return []error{fmt.Errorf("%s: %w", due[0].message.GetAttachment(), err)}
}

// isRefusal: whether ktsnd did not take a request for what it contains, or for its length.
func isRefusal(err error) bool {
	return slices.Contains([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.ResourceExhausted}, nodeapi.CodeOf(err))
}

// attached are this node's attachments that follow policies; what is known of others is forgotten. Of a pod that is not known nothing is
// said: what ktsnd knows of its attachment holds. States that cannot be read are an error beside the others.
func (a *Agent) attached(known *restricted, pods []*corev1.Pod) ([]attachment, error) {
	byName := map[string]*corev1.Pod{}
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	directory := cnistate.Open(a.config.CNIStateDir)
	states, err := directory.List()
	if err != nil {
		err = fmt.Errorf("attachments of which ktsnd is told nothing: %w", err)
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
	maps.DeleteFunc(known.told, func(name string, _ told) bool { return !isThere[name] })
	maps.DeleteFunc(known.shown, func(name string, _ policyfile.Restriction) bool { return !isThere[name] })
	return found, err
}

// show asks ktsnd for its restrictions where that matters: not all policies are known, and not all attachments were told of.
func (a *Agent) show(ctx context.Context, known *restricted, attachments []attachment) error {
	if known.unread == "" {
		known.shown = nil
		return nil
	}
	isMissing := false
	for _, one := range attachments {
		_, isTold := known.told[one.name]
		_, isShown := known.shown[one.name]
		isMissing = isMissing || (!isTold && !isShown)
	}
	if !isMissing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, restrictMax)
	defer cancel()
	list, err := a.daemon.List(ctx, &nodeapi.ListRequest{})
	if err != nil {
		return fmt.Errorf("ktsnd does not say which restrictions hold: %w", err)
	}
	known.shown = map[string]policyfile.Restriction{}
	for _, one := range list.GetAttachments() {
		known.shown[one.GetAttachment().GetName()] = restrictionOf(one.GetPolicy())
	}
	return nil
}

// next is what an attachment is to be told where that is what policies leave of it; false: nothing yet. While not all policies are
// known it leaves no more than what ktsnd has: that may be about a policy which was not read yet.
func (r *restricted) next(name string, now policyfile.Restriction) (policyfile.Restriction, bool) {
	if r.unread == "" {
		return now, true
	}
	if before, isTold := r.told[name]; isTold {
		return before.Restriction.And(now), true
	}
	before, isShown := r.shown[name]
	next := before.And(now)
	// Saying what was shown would cut what was not.
	return next, isShown && !next.Equal(before)
}

// forget: what became of what was said is not known.
func (r *restricted) forget(due []saying) {
	for _, one := range due {
		delete(r.told, one.message.GetAttachment())
		delete(r.shown, one.message.GetAttachment())
	}
}

// remember what ktsnd has now. Of the unknown attachments it has nothing.
func (a *Agent) remember(known *restricted, said []saying, unknown []string) {
	for _, one := range said {
		name, restriction := one.message.GetAttachment(), one.told
		if slices.Contains(unknown, name) {
			continue
		}
		before := known.told[name]
		known.told[name] = restriction
		if restriction.Reason != before.Reason {
			a.config.Log.Info("network policies", "attachment", name, "policies", restriction.Reason,
				"egress_restricted", restriction.EgressRestricted, "ingress_blocked", restriction.IngressBlocked)
		}
	}
}

// restrictionOf is one that ktsnd shows; nil: none.
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
