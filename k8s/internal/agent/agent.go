// SPDX-License-Identifier: Apache-2.0

// Package agent joins the node agent's parts.
//
// In: the API server's Nodes, Pods, NetworkPolicies, GateSchedules and Streams, ktsnd, the kubelet. Out: slots for the kubelet, files
// for tsn-cni, the TSN network's device, this Node's annotations, metrics. Each part has a loop of its own. A part that fails is reported
// (/readyz, log) and tries again; the other parts go on. The agent must never need the API server to keep a running pod's traffic going.
package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"ktsn.io/ktsn/k8s/internal/deviceplugin"
	"ktsn.io/ktsn/k8s/internal/install"
	"ktsn.io/ktsn/k8s/internal/kube"
	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/metrics"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/podwatch"
	"ktsn.io/ktsn/k8s/internal/rollout"
	"ktsn.io/ktsn/k8s/internal/stream"
)

// Parts, as /readyz calls them.
const (
	partAPI      = "api-server"
	partDaemon   = "ktsnd"
	partPlugin   = "device-plugin"
	partInstall  = "install"
	partVersion  = "version"
	partOverlay  = "overlay"
	partPolicy   = "policies"
	partRestrict = "restrictions"
)

// Agent is one running agent.
type Agent struct {
	config    Config
	kube      kube.API
	reviews   kube.Reviews
	dynamic   dynamic.Interface
	daemon    nodeapi.NodeClient
	plugin    *deviceplugin.Plugin
	installer *install.Installer
	network   *overlaynet.Network
	parts     *parts

	nodes    kube.Kept[kinds.Node]
	pods     kube.Kept[kinds.Pod]
	policies kube.Kept[kinds.NetworkPolicy]
	untold   []*kinds.Event // oldest first; only watchLoop uses them

	overlayChanged  chan struct{}
	policyChanged   chan struct{}
	restrictChanged chan struct{}
	others          *otherPolicies
	policyShares    *kube.Shares
	beats           *beats
	conflicts       []string // of the overlay, as they were logged last

	mutex    sync.Mutex
	file     nodefile.Node
	statuses metrics.Agent
	patience *podwatch.Patience
	answers  rollout.Answers // given last about GateSchedules
}

// New makes an agent. `reviews` is for the questions of --secure-listen alone, `network` is nil without an overlay, `custom` without
// GateSchedules.
func New(config Config, api kube.API, reviews kube.Reviews, custom dynamic.Interface, daemon nodeapi.NodeClient, network *overlaynet.Network) *Agent {
	installer := install.New(install.Config{
		From: config.InstallFrom, Version: nodeapi.Version, LibDir: config.LibDir, CNIBinDir: config.CNIBinDir,
		CNIConf: config.CNIConf, CNIConfDir: config.CNIConfDir, Log: config.Log,
	})
	plugin := deviceplugin.New(deviceplugin.Config{
		Folder: filepath.Join(config.KubeletDir, "device-plugins"), Resource: config.Resource,
		ClientDir: filepath.Join(config.RunDir, "client"), ClientPolicy: config.ClientPolicy,
		ClientReceive: config.ClientReceive, CDIDir: config.CDIDir,
		Log: config.Log,
	}, installer)
	a := &Agent{
		config: config, kube: api, reviews: reviews, dynamic: custom, daemon: daemon, plugin: plugin, installer: installer, network: network,
		parts:          newParts(partAPI, partDaemon, partPlugin, partInstall, partVersion, partPolicy, partRestrict),
		overlayChanged: make(chan struct{}, 1), policyChanged: make(chan struct{}, 1), restrictChanged: make(chan struct{}, 1),
		patience: podwatch.NewPatience(unloadedAfter), others: newOtherPolicies(), beats: newBeats(),
	}
	sayOver := a.sayOver("NetworkPolicies")
	a.policyShares = kube.NewShares(policiesBound, trimPolicy, func(namespace, reason string) {
		sayOver(namespace, reason)
		poke(a.policyChanged)
	})
	if custom == nil {
		a.others.unread = nil // nothing to ask with
	}
	a.file = nodefile.Node{
		Version: nodeapi.Version, Node: config.NodeName, CIDRs: overlaynet.Texts(config.CIDRs), Prefixes: []string{},
		Capacity: config.Capacity.Fixed, Uplink: config.Uplink, Ready: network == nil,
	}
	if network != nil {
		a.file.VxlanDevice, a.file.Reason = config.Network.Device, "the network's device was not looked at yet"
		a.parts.set(partOverlay, errors.New(a.file.Reason))
	}
	// The last capacity holds until ktsnd answers: the kubelet must not lose devices because the agent restarts.
	if old, err := nodefile.Read(a.nodeFilePath()); err == nil && old.Node == config.NodeName {
		if a.file.Capacity == 0 {
			a.file.Capacity = min(max(old.Capacity, 0), deviceplugin.DevicesMax)
		}
		// And pods must not lose their network while the API server is away.
		if slices.Equal(old.CIDRs, a.file.CIDRs) && old.VxlanDevice == a.file.VxlanDevice && old.Prefixes != nil {
			a.file.Prefixes, a.file.MTU, a.file.Uplink = old.Prefixes, old.MTU, old.Uplink
			a.file.Ready, a.file.Reason = old.Ready, old.Reason
		}
	}
	return a
}

func (a *Agent) nodeFilePath() string { return filepath.Join(a.config.RunDir, nodefile.Name) }

// Run works until the context ends.
func (a *Agent) Run(ctx context.Context) error {
	servers, err := a.listen()
	if err != nil {
		return err
	}
	for _, server := range servers {
		defer server.Close()
	}
	a.informers(ctx)
	var group sync.WaitGroup
	for _, loop := range []func(context.Context){
		func(ctx context.Context) {
			if err := a.plugin.Run(ctx); err != nil {
				a.config.Log.Error("device plugin", "error", err)
			}
		},
		a.healthLoop, a.installLoop, a.overlayLoop, a.watchLoop, a.policyLoop, a.restrictLoop, a.podLoop, a.scheduleLoop, a.streamLoop, a.rtCheckLoop,
	} {
		group.Add(1)
		go func() {
			defer group.Done()
			loop(ctx)
		}()
	}
	group.Wait()
	return nil
}

// informers follow Nodes, this node's Pods and all NetworkPolicies.
func (a *Agent) informers(ctx context.Context) {
	everything, here := fields.Everything(), fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName)
	nodes := kube.Informer(a.kube.Source("nodes", everything), &kinds.Node{}, slim(a.config.NodeName), nil)
	policies := kube.Informer(a.kube.Source("networkpolicies", everything), &kinds.NetworkPolicy{}, nil, a.policyShares)
	podShares := kube.NewShares(podsBound, trimPod, a.sayOver("pods"))
	pods := kube.Informer(a.kube.Source("pods", here), &kinds.Pod{}, nil, podShares)
	a.nodes.Store, a.policies.Store, a.pods.Store = nodes.GetStore(), policies.GetStore(), pods.GetStore()
	synced := []cache.InformerSynced{
		Notify(nodes, func() { poke(a.overlayChanged) }), Notify(policies, func() { poke(a.policyChanged) }),
		Notify(pods, func() { poke(a.policyChanged) }),
	}
	a.parts.set(partAPI, fmt.Errorf("no answer of the API server to list and watch yet"))
	for _, informer := range []cache.SharedIndexInformer{nodes, policies, pods} {
		go informer.Run(ctx.Done())
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			a.parts.set(partAPI, nil)
			poke(a.overlayChanged)
			poke(a.policyChanged)
		}
	}()
}

// slim removes the parts of Nodes that the agent never reads; a cluster has many.
func slim(own string) cache.TransformFunc {
	return func(object any) (any, error) {
		if found, is := object.(*kinds.Node); is {
			found.ManagedFields = nil
			if found.Name != own {
				delete(found.Annotations, stream.Annotation)
			}
		}
		return object, nil
	}
}

// every runs the function `every`, and lets /livez see a step that takes too long.
func (a *Agent) every(ctx context.Context, loop string, pause func() time.Duration, signal <-chan struct{}, act func(context.Context)) {
	every(ctx, pause, signal, func(ctx context.Context) {
		a.beats.begin(loop)
		defer a.beats.end(loop)
		act(ctx)
	})
}

// poke signals without waiting. One pending signal is enough.
func poke(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// every calls `act` at once, and again after each pause or signal.
func every(ctx context.Context, pause func() time.Duration, signal <-chan struct{}, act func(context.Context)) {
	for {
		act(ctx)
		timer := time.NewTimer(pause())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-signal:
			timer.Stop()
		}
	}
}

// always is a pause that does not change.
func always(pause time.Duration) func() time.Duration { return func() time.Duration { return pause } }

// setPart stores a part's state, and logs it when it changed.
func (a *Agent) setPart(part string, err error) {
	if !a.parts.set(part, err) {
		return
	}
	if err != nil {
		a.config.Log.Warn("not ready", "part", part, "reason", err)
	} else {
		a.config.Log.Info("ready", "part", part)
	}
}
