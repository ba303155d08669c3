// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/kube/kubetest"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/policyfile"
)

var ciliums = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnetworkpolicies"}

var newCiliums = schema.GroupVersionResource{Group: "cilium.io", Version: "v3", Resource: "ciliumnetworkpolicies"}

func ciliumPolicy(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": map[string]any{"namespace": "a", "name": name}, "spec": map[string]any{"x": "y"},
	}}
}

// The policies of an engine that KTSN does not read count as ones about every pod; those that may not be listed are not known.
func TestPoliciesOfOtherKinds(t *testing.T) {
	kube := kubefake.NewClientset()
	kube.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}}},
		{GroupVersion: "cilium.io/v2", APIResources: []metav1.APIResource{{Name: "ciliumnetworkpolicies"}, {Name: "ciliumnodes"}}},
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{ciliums: "CiliumNetworkPolicyList"}, ciliumPolicy("l7"))
	var isForbidden = true
	client.PrependReactor("list", "ciliumnetworkpolicies", func(ktesting.Action) (bool, runtime.Object, error) {
		if isForbidden {
			return true, nil, apierrors.NewForbidden(ciliums.GroupResource(), "", errors.New("no right"))
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eventually := func(what string, holds func() bool) { t.Helper(); eventually.Holds(t, what, holds) }
	forbidden := newOtherPolicies()
	if forbidden.now().Unread == "" {
		t.Error("nothing was looked at, and all is known")
	}
	log := slog.New(slog.DiscardHandler)
	kinds, err := findKinds(kube.Discovery())
	if err != nil || !slices.Equal(kinds, []schema.GroupVersionResource{ciliums}) {
		t.Fatalf("%v, %v", kinds, err)
	}
	forbidden.follow(ctx, kinds, client, log, func() {})
	eventually("that they may not be listed is told", func() bool { return strings.Contains(forbidden.now().Unread, "no right") })
	isForbidden = false
	allowed := newOtherPolicies()
	go allowed.run(ctx, kube.Discovery(), client, log, func() {})
	eventually("the policy counts", func() bool {
		others := allowed.now()
		return others.Unread == "" && len(others.Every["a"]) == 1 && strings.HasPrefix(others.Every["a"][0], "CiliumNetworkPolicy l7")
	})
	if err := client.Resource(ciliums).Namespace("a").Delete(ctx, "l7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("it counts no more", func() bool { return allowed.now().Unread == "" && allowed.now().Every == nil })
}

// A kind's policies count until those of its new version were listed, and while the API server does not name the kind for a moment.
func TestPoliciesOfAKindThatMoves(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		ciliums: "CiliumNetworkPolicyList", newCiliums: "CiliumNetworkPolicyList",
	}, ciliumPolicy("l7"))
	var isForbidden, isGone atomic.Bool
	isForbidden.Store(true)
	client.PrependReactor("list", "ciliumnetworkpolicies", func(action ktesting.Action) (bool, runtime.Object, error) {
		switch version := action.GetResource().Version; {
		case version == "v3" && isForbidden.Load():
			return true, nil, apierrors.NewForbidden(newCiliums.GroupResource(), "", errors.New("no right"))
		case version == "v2" && isGone.Load():
			return true, nil, apierrors.NewNotFound(ciliums.GroupResource(), "")
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	others := newOtherPolicies()
	follow := func(kinds ...schema.GroupVersionResource) {
		others.follow(ctx, kinds, client, slog.New(slog.DiscardHandler), func() {})
	}
	known := func() policyfile.Others { return others.now() }
	counts := func() bool { return len(known().Every["a"]) == 1 }
	follow(ciliums)
	eventually.Holds(t, "the policy counts", func() bool { return known().Unread == "" && counts() })
	for range goneLooks + 1 {
		if follow(); known().Unread != "" || !counts() {
			t.Fatalf("the group is not named, and its policies are there: %+v", known())
		}
	}
	follow(newCiliums)
	eventually.Holds(t, "the new version may not be listed", func() bool { return strings.Contains(known().Unread, "no right") })
	if follow(newCiliums); !counts() {
		t.Fatalf("the old version's policies are forgotten: %+v", known())
	}
	isForbidden.Store(false)
	eventually.Holds(t, "the new version, which has none", func() bool { return known().Unread == "" && known().Every == nil })
	if follow(newCiliums); !slices.Equal(others.kinds(), []schema.GroupVersionResource{newCiliums}) {
		t.Errorf("followed: %v", others.kinds())
	}
	follow(ciliums)
	eventually.Holds(t, "the old version again", counts)
	follow(ciliums)
	isGone.Store(true)
	for range goneLooks - 1 {
		if follow(); !counts() {
			t.Fatal("given up after a moment")
		}
	}
	if follow(); len(others.kinds()) != 0 || known().Every != nil {
		t.Errorf("a kind that is gone is followed: %v", others.kinds())
	}
	isForbidden.Store(true)
	follow(newCiliums)
	eventually.Holds(t, "one that may not be listed", func() bool { return strings.Contains(known().Unread, "no right") })
	for range goneLooks {
		follow()
	}
	if len(others.kinds()) != 0 || known().Unread != "" {
		t.Errorf("a kind that is gone, and was never read, is followed: %v", others.kinds())
	}
}

// withKinds makes the agent again, with a dynamic client whose lists of Cilium's policies wait until they are let through.
func (b *bench) withKinds(policies ...runtime.Object) (letThrough func(), client *dynamicfake.FakeDynamicClient) {
	b.t.Helper()
	b.kube.Resources = []*metav1.APIResourceList{{GroupVersion: "cilium.io/v2", APIResources: []metav1.APIResource{{Name: "ciliumnetworkpolicies"}}}}
	client = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		ciliums: "CiliumNetworkPolicyList", v1alpha1.GateSchedules: "GateScheduleList", v1alpha1.Streams: "StreamList",
	}, policies...)
	waiting, cancel := context.WithCancel(context.Background())
	client.PrependReactor("list", "ciliumnetworkpolicies", func(ktesting.Action) (bool, runtime.Object, error) {
		<-waiting.Done()
		return false, nil, nil
	})
	b.Agent = New(b.config, kubetest.Of(b.kube), kubetest.Of(b.kube), client, b.daemon, nil)
	b.start()
	b.t.Cleanup(cancel) // before the agent's end
	return sync.OnceFunc(cancel), client
}

// Restrictions that an agent before this one sent to ktsnd may be about policies of other kinds: until these are read, nothing is loosened.
func TestARestartLoosensNothing(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Overlay = false }, nil, node("kn1", "192.0.2.1", nil, 0))
	closed := &nodeapi.AttachmentPolicy{Attachment: "c-talker/net1", EgressRestricted: true, IngressBlocked: true, Reason: "CiliumNetworkPolicy l7"}
	b.daemon.policies["c-talker/net1"] = closed
	b.daemon.there = []string{"c-talker/net1", "c-other/net1"}
	b.attachedPod("talker", "")
	b.attachedPod("other", "")
	egress := []networking.PolicyType{networking.PolicyTypeEgress}
	all := []networking.NetworkPolicyEgressRule{{To: []networking.NetworkPolicyPeer{{IPBlock: &networking.IPBlock{CIDR: "0.0.0.0/0"}}}}}
	b.policy("open", networking.NetworkPolicySpec{PolicyTypes: egress, Egress: all})
	letThrough, client := b.withKinds(ciliumPolicy("l7"))
	b.eventually("the other is restricted", func() bool { said := b.daemon.said("c-other/net1"); return said != nil && said.EgressRestricted })
	b.policy("in", networking.NetworkPolicySpec{PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress}})
	b.eventually("more and more", func() bool { return b.daemon.said("c-other/net1").IngressBlocked })
	for _, name := range []string{"in", "open"} {
		if err := b.kube.NetworkingV1().NetworkPolicies("a").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.eventually("the file without them", func() bool {
		var file policyfile.File
		err := readJSON(b.config.RunDir+"/"+policyfile.Name, &file)
		return err == nil && file.Synced && file.Unread != "" && len(file.Namespaces) == 0
	})
	time.Sleep(2 * policyEvery) // nothing may come
	b.daemon.mutex.Lock()
	for _, said := range b.daemon.heard {
		if said.GetAttachment() == "c-talker/net1" || !said.GetEgressRestricted() {
			t.Errorf("said: %v", said)
		}
	}
	b.daemon.mutex.Unlock()
	letThrough()
	b.eventually("both are about Cilium's", func() bool {
		return strings.Contains(b.daemon.said("c-talker/net1").Reason, "which KTSN does not read") &&
			len(b.daemon.said("c-other/net1").EgressAllowed) == 0
	})
	if err := client.Resource(ciliums).Namespace("a").Delete(context.Background(), "l7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("both are free", func() bool {
		return !b.daemon.said("c-talker/net1").IngressBlocked && !b.daemon.said("c-other/net1").EgressRestricted
	})
}
