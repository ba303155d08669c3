// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

const (
	overlayEvery = 30 * time.Second
	overlayRetry = 2 * time.Second
	overlayQuiet = 50 * time.Millisecond
	patchMax     = 10 * time.Second
)

func settle(ctx context.Context, signal <-chan struct{}, quiet time.Duration) {
	overlaynet.Settle(ctx, signal, quiet)
}

// watchLoop starts a step of the overlay when the kernel's tables change.
func (a *Agent) watchLoop(ctx context.Context) {
	if a.network == nil {
		return
	}
	every(ctx, always(overlayRetry), nil, func(ctx context.Context) {
		if err := overlaynet.Watch(ctx, nil, func() { poke(a.overlayChanged) }); err != nil && ctx.Err() == nil {
			a.config.Log.Warn("overlay", "error", err)
		}
		poke(a.overlayChanged) // for changes before the watch began
	})
}

// overlayLoop keeps the TSN network in line with the Nodes' annotations.
func (a *Agent) overlayLoop(ctx context.Context) {
	if a.network == nil {
		return
	}
	pause := overlayEvery
	a.every(ctx, partOverlay, func() time.Duration { return pause }, a.overlayChanged, func(ctx context.Context) {
		if a.parts.get(partAPI) != nil {
			pause = overlayRetry // the other nodes are not known: the network stays as it is
			return
		}
		settle(ctx, a.overlayChanged, overlayQuiet)
		err := a.reconcileOverlay(ctx)
		a.setPart(partOverlay, err)
		if pause = overlayEvery; err != nil {
			pause = overlayRetry
		}
		a.writeNodeFile(func(file *nodefile.Node) {
			file.Ready, file.Reason = err == nil, ""
			if err != nil {
				file.Reason = err.Error()
			}
		})
	})
}

// reconcileOverlay does one step: it reads all Nodes and corrects the kernel's tables.
func (a *Agent) reconcileOverlay(ctx context.Context) error {
	nodes := a.nodes.List()
	index := slices.IndexFunc(nodes, func(n *kinds.Node) bool { return n.Name == a.config.NodeName })
	if index < 0 {
		return fmt.Errorf("there is no Node %s: is --node-name right?", a.config.NodeName)
	}
	own, err := a.own(nodes[index])
	if err != nil {
		return err
	}
	if err := overlaynet.CheckFree(a.config.CIDRs, overlaynet.ClaimsOf(nodes[index])); err != nil {
		return err
	}
	others, prefixes, conflicts := a.members(nodes, own)
	a.noteConflicts(conflicts)
	own.Prefixes = prefixes
	vtep, changes, err := a.network.Reconcile(own, others)
	for _, change := range changes {
		a.config.Log.Info("overlay", "change", change)
	}
	if vtep.MAC == "" {
		return err // there is no device
	}
	a.mutex.Lock()
	a.statuses.Nodes = len(others)
	a.mutex.Unlock()
	a.writeNodeFile(func(file *nodefile.Node) {
		file.Prefixes, file.MTU, file.Uplink = vtep.Prefixes, vtep.MTU, own.Uplink.Name
	})
	err = errors.Join(err, a.annotate(ctx, nodes[index], overlaynet.AnnotationVTEP, vtep.Annotation()))
	if err == nil && len(prefixes) == 0 {
		return a.noPrefixes(nodes[index], conflicts)
	}
	return err
}

// noPrefixes returns the reason why this node has no prefixes.
func (a *Agent) noPrefixes(node *kinds.Node, conflicts []string) error {
	if text := node.Annotations[overlaynet.AnnotationPrefixes]; text != "" {
		return fmt.Errorf("none of the prefixes %s is this node's: %s", text, strings.Join(conflicts, "; "))
	}
	return fmt.Errorf("the Node has no annotation %s: is ktsn-controller running? Or write one: "+
		"kubectl annotate node %s %s=PREFIX", overlaynet.AnnotationPrefixes, node.Name, overlaynet.AnnotationPrefixes)
}

// own reads this node's part from its Node object.
func (a *Agent) own(node *kinds.Node) (overlaynet.Own, error) {
	prefixes, err := overlaynet.ParsePrefixes(overlaynet.AnnotationPrefixes, node.Annotations[overlaynet.AnnotationPrefixes])
	if err != nil {
		return overlaynet.Own{}, err
	}
	address, err := internalIP(node)
	if err != nil && a.config.Uplink == "" {
		return overlaynet.Own{}, err
	}
	uplink, err := a.network.FindUplink(a.config.Uplink, address)
	if err != nil {
		return overlaynet.Own{}, err
	}
	return overlaynet.Own{
		MAC: overlaynet.MACOf(node.Name, a.config.Network.VNI), Uplink: uplink, Prefixes: prefixes,
	}, nil
}

func internalIP(node *kinds.Node) (netip.Addr, error) {
	for _, address := range node.Status.Addresses {
		if address.Type == kinds.NodeInternalIP {
			return netip.ParseAddr(address.Address)
		}
	}
	return netip.Addr{}, fmt.Errorf("the Node %s has no InternalIP yet: name the device with --uplink", node.Name)
}

// members returns the other nodes of the network and this node's own prefixes, without those that conflict.
func (a *Agent) members(nodes []*kinds.Node, own overlaynet.Own) (others []overlaynet.Member, prefixes []netip.Prefix, conflicts []string) {
	var all []overlaynet.Member
	for _, node := range nodes {
		member := overlaynet.Member{
			// Without an age it counts as the oldest: no other node's claim takes this node's prefixes.
			Address: own.Uplink.Address, MAC: own.MAC, VNI: a.config.Network.VNI, Port: a.config.Network.Port, Prefixes: own.Prefixes,
		}
		if node.Name != a.config.NodeName {
			text := node.Annotations[overlaynet.AnnotationVTEP]
			if text == "" {
				continue // it takes no part, or not yet
			}
			var err error
			if member, err = a.other(node, text); err != nil {
				conflicts = append(conflicts, fmt.Sprintf("node %s: %v", node.Name, err))
				if member.MAC == nil {
					continue
				}
			}
			member.Created = node.CreationTimestamp.Time
		}
		member.Node = node.Name
		all = append(all, member)
	}
	admitted, more := overlaynet.Admit(all, a.config.CIDRs, a.config.Network.VNI, a.config.Network.Port)
	for _, member := range admitted {
		if member.Node == a.config.NodeName {
			prefixes = member.Prefixes
		} else {
			others = append(others, member)
		}
	}
	others, apart := overlaynet.Reachable(own.Uplink.Address, others)
	slices.Sort(conflicts)
	return others, prefixes, slices.Concat(conflicts, more, apart)
}

// other reads another node's part. Its agent's annotation counts only where the Node object confirms it: assigned prefixes, an address of the
// Node. An error together with a member names what was left out.
func (a *Agent) other(node *kinds.Node, text string) (overlaynet.Member, error) {
	member, err := overlaynet.ParseVTEP(text)
	if err != nil {
		return overlaynet.Member{}, err
	}
	if want := overlaynet.MACOf(node.Name, a.config.Network.VNI); member.MAC.String() != want.String() {
		return overlaynet.Member{}, fmt.Errorf("%s: mac %s, the Node's is %s", overlaynet.AnnotationVTEP, member.MAC, want)
	}
	// With --uplink the tunnel may use addresses that no Node has.
	if a.config.Uplink == "" && !slices.ContainsFunc(node.Status.Addresses, func(one kinds.NodeAddress) bool {
		return one.Address == member.Address.String()
	}) {
		return overlaynet.Member{}, fmt.Errorf("%s: address %s is none of the Node's", overlaynet.AnnotationVTEP, member.Address)
	}
	given, err := overlaynet.ParsePrefixes(overlaynet.AnnotationPrefixes, node.Annotations[overlaynet.AnnotationPrefixes])
	if err != nil {
		return overlaynet.Member{}, err
	}
	held, refused := overlaynet.Held(member.Prefixes, given)
	if member.Prefixes = held; len(refused) > 0 {
		return member, fmt.Errorf("claims %s, which %s does not give it", strings.Join(overlaynet.Texts(refused), ", "), overlaynet.AnnotationPrefixes)
	}
	return member, nil
}

// noteConflicts logs the conflicts when they are others than before.
func (a *Agent) noteConflicts(conflicts []string) {
	if a.conflicts != nil && slices.Equal(a.conflicts, conflicts) {
		return
	}
	a.conflicts = slices.Concat([]string{}, conflicts)
	a.mutex.Lock()
	a.statuses.Conflicts = len(conflicts)
	a.mutex.Unlock()
	for _, conflict := range conflicts {
		a.config.Log.Warn("overlay: left out", "conflict", conflict)
	}
}

// annotate writes one annotation of this Node, if it says something else.
func (a *Agent) annotate(ctx context.Context, node *kinds.Node, name, text string) error {
	if node.Annotations[name] == text {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: text}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patchMax)
	defer cancel()
	if err := a.kube.PatchNode(ctx, node.Name, patch); err != nil {
		return fmt.Errorf("annotation %s: %w", name, err)
	}
	return nil
}
