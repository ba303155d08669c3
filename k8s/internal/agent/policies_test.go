// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/internal/cniconf"
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

// attachedPod is a pod of this node with an attachment c-NAME/net1.
func (b *bench) attachedPod(name, policies string) {
	b.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "u1", Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "kn1"},
	}
	if _, err := b.kube.CoreV1().Pods("a").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.attach(name, policies)
}

func (b *bench) attach(name, policies string) {
	b.t.Helper()
	state := &cnistate.State{
		ContainerID: "c-" + name, IfName: "net1", Netns: "/run/netns/" + name, Pod: cniconf.Pod{Namespace: "a", Name: name, UID: "u1"},
		Attachment: cnistate.AttachmentName("c-"+name, "net1"), Policies: policies,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := cnistate.Open(b.config.CNIStateDir).Reserve(ctx, state, 0); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) policy(name string, spec networking.NetworkPolicySpec) {
	b.t.Helper()
	policy := &networking.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: spec}
	if _, err := b.kube.NetworkingV1().NetworkPolicies("a").Create(context.Background(), policy, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// A policy that comes after the attachment is sent to ktsnd, for both directions, and so is its end; an attachment that comes after the
// policy hears of it, too, and one that is not there yet again and again.
func TestPoliciesThatComeLaterAreToldToKtsnd(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.daemon.missing["c-late/net1"] = true
	b.attachedPod("talker", "")
	b.attachedPod("ignored", "ignore")
	b.start()
	b.eventually("the talker is free", func() bool {
		said := b.daemon.said("c-talker/net1")
		return said != nil && !said.EgressRestricted && !said.IngressBlocked
	})
	both := []networking.PolicyType{networking.PolicyTypeEgress, networking.PolicyTypeIngress}
	b.policy("closed", networking.NetworkPolicySpec{PolicyTypes: both, Egress: []networking.NetworkPolicyEgressRule{{
		To: []networking.NetworkPolicyPeer{{IPBlock: &networking.IPBlock{CIDR: "10.99.1.0/24"}}},
	}}})
	b.eventually("the talker is restricted", func() bool {
		said := b.daemon.said("c-talker/net1")
		return said.EgressRestricted && said.IngressBlocked && slices.Equal(said.EgressAllowed, []string{"10.99.1.0/24"}) &&
			strings.Contains(said.Reason, "egress NetworkPolicy closed")
	})
	b.attachedPod("late", "")
	b.daemon.set(true)
	b.eventually("that ktsnd was not told", func() bool { return strings.Contains(b.parts.String(), "restrictions: ktsnd has not taken all") })
	b.daemon.set(false)
	calls := func() int {
		b.daemon.mutex.Lock()
		defer b.daemon.mutex.Unlock()
		return b.daemon.calls
	}
	before := calls()
	b.eventually("two tries in vain", func() bool { return calls() > before+1 })
	b.daemon.mutex.Lock()
	delete(b.daemon.missing, "c-late/net1")
	b.daemon.mutex.Unlock()
	b.eventually("the late one is restricted", func() bool { said := b.daemon.said("c-late/net1"); return said != nil && said.EgressRestricted })
	if said := b.daemon.said("c-ignored/net1"); said != nil {
		t.Errorf("policies = ignore: %v", said)
	}
	if err := b.kube.NetworkingV1().NetworkPolicies("a").Delete(context.Background(), "closed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("both are free", func() bool {
		return !b.daemon.said("c-talker/net1").EgressRestricted && !b.daemon.said("c-late/net1").IngressBlocked
	})
}

// An ADD that attaches again under the same name is sent within a second: ktsnd forgot the restriction with the attachment.
func TestAnAttachmentThatIsMadeAgain(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.policy("closed", networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress}})
	b.attachedPod("talker", "")
	b.start()
	told := func() bool { return b.daemon.said("c-talker/net1") != nil }
	b.eventually("it is told", told)
	for range 2 {
		b.daemon.mutex.Lock()
		delete(b.daemon.policies, "c-talker/net1")
		b.daemon.mutex.Unlock()
		began := time.Now()
		b.attach("talker", "")
		if b.eventually("it is told again", told); time.Since(began) > restrictAgain/2 {
			t.Errorf("only when everything is said again, after %s", time.Since(began))
		}
	}
}

// A state that cannot be read is said, and holds up no other attachment.
func TestAStateThatCannotBeRead(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.attachedPod("broken", "")
	b.attachedPod("talker", "")
	file := filepath.Join(b.config.CNIStateDir, "c-broken", "net1.json")
	if err := os.WriteFile(file, []byte(`{"pod":{"name`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("the other one is told of", func() bool { return b.daemon.said("c-talker/net1") != nil })
	b.eventually("the broken state", func() bool {
		return strings.Contains(b.parts.String(), "restrictions: attachments without restrictions at ktsnd: broken state file "+file)
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.eventually("it is gone", func() bool { return !strings.Contains(b.parts.String(), "restrictions") })
}

// What does not fit into one request comes in several, and an attachment whose restriction is refused holds up no other one.
func TestRestrictionsComeInParts(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	const count = 80
	name := func(i int) string { return fmt.Sprintf("talker-%d", i) }
	for i := range count {
		b.attachedPod(name(i), "")
	}
	b.daemon.refused = "c-" + name(count/2) + "/net1"
	peers := []networking.NetworkPolicyPeer{}
	for i := range 4096 {
		block := fmt.Sprintf("fd99:1234:5678:%x:1234:5678:9abc:def0/128", i)
		peers = append(peers, networking.NetworkPolicyPeer{IPBlock: &networking.IPBlock{CIDR: block}})
	}
	b.policy("long", networking.NetworkPolicySpec{
		PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress}, Egress: []networking.NetworkPolicyEgressRule{{To: peers}},
	})
	b.start()
	for i := range count {
		if i != count/2 {
			b.eventually(name(i), func() bool {
				said := b.daemon.said("c-" + name(i) + "/net1")
				return said != nil && len(said.EgressAllowed) == len(peers)
			})
		}
	}
	b.eventually("the one that was refused", func() bool {
		return strings.Contains(b.parts.String(), "restrictions: ktsnd has not taken all network policies: c-"+name(count/2)+"/net1: no prefix (1 such)")
	})
}

// ADD waits for the pod's entry in policies.json, which comes also while ktsnd does not answer.
func TestThePolicyFileDoesNotWaitForKtsnd(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.daemon.busy = make(chan struct{})
	b.attachedPod("talker", "")
	b.start()
	t.Cleanup(func() { close(b.daemon.busy) }) // before the agent's end
	for i := range 5 {
		name := fmt.Sprintf("new-%d", i)
		b.attachedPod(name, "")
		b.eventually("the pod's entry", func() bool {
			var file policyfile.File
			err := readJSON(filepath.Join(b.config.RunDir, policyfile.Name), &file)
			return err == nil && file.Pods["a/"+name].UID == "u1"
		})
	}
}

// Nothing is said again while nothing changes.
func TestWhatKtsndKnowsIsNotSaidAgain(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	b.attachedPod("talker", "")
	b.start()
	b.eventually("it is told", func() bool { return b.daemon.said("c-talker/net1") != nil })
	for range 5 {
		poke(b.policyChanged)
		time.Sleep(50 * time.Millisecond) // nothing may be said
	}
	b.daemon.mutex.Lock()
	defer b.daemon.mutex.Unlock()
	if b.daemon.calls != 1 {
		t.Errorf("%d calls", b.daemon.calls)
	}
}

func TestAStepThatTakesTooLongIsTold(t *testing.T) {
	b := newBeats()
	now := time.Now()
	b.now = func() time.Time { return now }
	b.begin("policies")
	b.begin("overlay")
	b.end("overlay")
	now = now.Add(stuckAfter)
	if err := b.stuck(); err != nil {
		t.Error(err)
	}
	now = now.Add(time.Second)
	if err := b.stuck(); err == nil || !strings.Contains(err.Error(), "policies: a step takes 2m1s") || strings.Contains(err.Error(), "overlay") {
		t.Error(err)
	}
	b.end("policies")
	if err := b.stuck(); err != nil {
		t.Error(err)
	}
}
