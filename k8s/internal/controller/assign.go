// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Annotations of pods: networksAsked is the pod's wish, networkStatus what Multus has made of it, with addresses.
const (
	networksAsked = "k8s.v1.cni.cncf.io/networks"
	networkStatus = "k8s.v1.cni.cncf.io/network-status"
)

// doubledEvery is how often a prefix of two nodes is looked at.
const doubledEvery = 5 * time.Second

// given is what was written to a Node, and the version that it was decided on.
type given struct {
	version  string
	prefixes []netip.Prefix
}

// serviceRanges of the cluster. Before Kubernetes 1.33 there is no such object: then only the API server's own address is known.
func (c *Controller) serviceRanges(ctx context.Context) []overlaynet.Claim {
	ctx, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	list, err := c.kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		c.log.Debug("ranges of Services are not known", "error", err)
		return nil
	}
	var claims []overlaynet.Claim
	for _, one := range list.Items {
		for _, text := range one.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				claims = append(claims, overlaynet.Claim{What: "Services", Prefix: prefix.Masked()})
			}
		}
	}
	return claims
}

// assign gives prefixes to the nodes that have none, and others to those that have an older node's.
func (c *Controller) assign(ctx context.Context, nodes []*corev1.Node) error {
	if len(c.prefixes.CIDRs) == 0 {
		return nil
	}
	if err := overlaynet.CheckFree(c.prefixes.CIDRs, c.services); err != nil {
		return err
	}
	used := Used(nodes)
	// What was written a moment ago is not in the informer yet.
	waiting := map[string]given{}
	for _, node := range nodes {
		if one, has := c.assigned[node.Name]; has && one.version == node.ResourceVersion {
			waiting[node.Name] = one
			used = append(used, one.prefixes...)
		}
	}
	c.assigned = waiting
	c.isUnder = c.isUnder || len(waiting) > 0
	var faults []error
	for _, node := range oldestFirst(nodes) {
		// Its kubelet writes its addresses: what one node says keeps no other from its prefixes.
		err := overlaynet.CheckFree(c.prefixes.CIDRs, overlaynet.ClaimsOf(asKind(node)))
		faults = append(faults, err)
		if _, has := waiting[node.Name]; has || err != nil || !missing(node) {
			continue
		}
		prefixes, err := c.give(ctx, node, used, nil)
		if err != nil {
			faults = append(faults, err)
			break // no other would get one either
		}
		used = append(used, prefixes...)
		c.isUnder = true
	}
	return errors.Join(append(faults, c.separate(ctx, FindDoubled(nodes), used))...)
}

// asKind is what of a Node claims a range.
func asKind(node *corev1.Node) *kinds.Node {
	claiming := &kinds.Node{Spec: kinds.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs}}
	claiming.Name = node.Name
	for _, one := range node.Status.Addresses {
		claiming.Status.Addresses = append(claiming.Status.Addresses, kinds.NodeAddress{Type: kinds.NodeAddressType(one.Type), Address: one.Address})
	}
	return claiming
}

// separate heals what can be healed. It asks for pods, so it looks seldom while something stays as it is.
func (c *Controller) separate(ctx context.Context, all []Doubled, used []netip.Prefix) error {
	if len(all) == 0 {
		c.doubled, c.doubledAt = nil, time.Time{}
		return nil
	}
	if c.now().Sub(c.doubledAt) < doubledEvery {
		return c.doubled
	}
	var faults []error
	for _, one := range all {
		if _, has := c.assigned[one.Node.Name]; has {
			continue
		}
		prefixes, err := c.heal(ctx, one, used)
		faults = append(faults, err)
		used = append(used, prefixes...)
	}
	c.doubled, c.doubledAt = errors.Join(faults...), c.now()
	return c.doubled
}

// give writes a Node's prefixes: those that it keeps, and free ones; what was written.
func (c *Controller) give(ctx context.Context, node *corev1.Node, used, kept []netip.Prefix) ([]netip.Prefix, error) {
	prefixes, err := c.prefixes.Assign(used, kept)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node.Name, err)
	}
	text := strings.Join(overlaynet.Texts(prefixes), ",")
	// The version makes the patch fail where the Node has changed meanwhile.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]string{overlaynet.AnnotationPrefixes: text},
	}})
	if err != nil {
		return nil, err
	}
	if err := c.write(ctx, func(ctx context.Context) error {
		found, err := c.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil && found.Annotations[overlaynet.AnnotationPrefixes] == text {
			c.assigned[node.Name] = given{node.ResourceVersion, prefixes}
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("node %s: %w", node.Name, err)
	}
	c.log.Info("prefixes assigned", "node", node.Name, "prefixes", text)
	return prefixes, nil
}

// heal gives a Node other prefixes in place of an older one's, unless pods have addresses out of them: these would be cut off from
// their own node too. Then the administrator has to say which of the two is to move.
func (c *Controller) heal(ctx context.Context, doubled Doubled, used []netip.Prefix) ([]netip.Prefix, error) {
	node := doubled.Node
	lost := strings.Join(overlaynet.Texts(doubled.Lost), ",")
	pods, err := c.podsWithin(ctx, node.Name, doubled.Lost)
	if err != nil {
		return nil, fmt.Errorf("node %s: its prefix %s is node %s's too, which is older; whether its pods use it is not known: %w",
			node.Name, lost, doubled.Older, err)
	}
	if len(pods) > 0 {
		return nil, fmt.Errorf("node %s: its prefix %s is node %s's too, which is older; %d pods have addresses out of it, which no other "+
			"node reaches (%s): delete them, and the node gets another prefix; or write one for node %s: kubectl annotate --overwrite node %s %s=PREFIX",
			node.Name, lost, doubled.Older, len(pods), strings.Join(pods[:min(len(pods), 3)], ", "), doubled.Older, doubled.Older,
			overlaynet.AnnotationPrefixes)
	}
	c.log.Warn("a prefix was given to two nodes: the younger one gets another", "node", node.Name, "prefix", lost, "older", doubled.Older)
	return c.give(ctx, node, used, doubled.Kept)
}

// podsPage bounds how many whole pods are in memory at once: one has up to a megabyte.
const podsPage = 5

// podsWithin names the pods of a node with an address in one of these prefixes.
func (c *Controller) podsWithin(ctx context.Context, node string, prefixes []netip.Prefix) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, writeMax)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), Limit: podsPage}
	var found []string
	for {
		list, err := c.kube.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, pod := range list.Items {
			if pod.Spec.NodeName == node && uses(&pod, prefixes) {
				found = append(found, pod.Namespace+"/"+pod.Name)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	slices.Sort(found)
	return found, nil
}

// uses says whether a pod has an address in one of these prefixes, or may be about to.
func uses(pod *corev1.Pod, prefixes []netip.Prefix) bool {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	var networks []struct {
		IPs []string `json:"ips"`
	}
	text, hasStatus := pod.Annotations[networkStatus]
	if !hasStatus && pod.Annotations[networksAsked] != "" {
		return true // on its way: what it was given is not known yet
	}
	if hasStatus && json.Unmarshal([]byte(text), &networks) != nil {
		return true
	}
	for _, one := range pod.Status.PodIPs {
		networks = append(networks, struct {
			IPs []string `json:"ips"`
		}{[]string{one.IP}})
	}
	for _, network := range networks {
		for _, text := range network.IPs {
			address, err := netip.ParseAddr(text)
			if err == nil && slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(address) }) {
				return true
			}
		}
	}
	return false
}
