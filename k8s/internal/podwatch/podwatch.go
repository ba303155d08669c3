// SPDX-License-Identifier: Apache-2.0

// Package podwatch finds containers that have a TSN slot without a program that uses KTSN.
//
// In: the kubelet's pod-resources API (who has which slot), the interfaces that tsn-cni attached, ktsnd's clients. Out:
// one finding for each such container, with what to do. Nothing else shows that the library is not loaded: the program's frames leave by the
// kernel, as without a slot. It never acts on a pod.
package podwatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// listMax is how long the kubelet has to answer.
const listMax = 5 * time.Second

// Holder is one container with slots.
type Holder struct {
	Namespace, Pod, Container string
	Devices                   []string
}

// Holders asks the kubelet, at a path of its socket, which containers have slots of a resource.
func Holders(ctx context.Context, socket, resource string) ([]Holder, error) {
	// gRPC would try again and again to reach what is not there.
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pod-resources: %w: is the kubelet running, and its directory mounted into the agent?", err)
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("pod-resources: %w", err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, listMax)
	defer cancel()
	answer, err := api.NewPodResourcesListerClient(connection).List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("pod-resources: %w", err)
	}
	var holders []Holder
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			var devices []string
			for _, device := range container.GetDevices() {
				if device.GetResourceName() == resource {
					devices = append(devices, device.GetDeviceIds()...)
				}
			}
			if len(devices) > 0 {
				sort.Strings(devices)
				holders = append(holders, Holder{pod.GetNamespace(), pod.GetName(), container.GetName(), devices})
			}
		}
	}
	return holders, nil
}

// Interface is one that tsn-cni attached.
type Interface struct {
	Namespace, Pod string
	// Attachment is its name at ktsnd, Capture what the network's configuration says.
	Attachment, Capture string
}

// Finding is one container, and what is the matter.
type Finding struct {
	Holder
	Reason  string // as in an Event: one word
	Message string
}

// Reasons of findings.
const (
	ReasonNoNetwork   = "NoTSNNetwork"
	ReasonOnTheHost   = "TSNOnHostNetwork"
	ReasonNotAttached = "TSNInterfaceNotAttached"
	ReasonNotLoaded   = "TSNLibraryNotLoaded"
)

// Find holds the slots against the interfaces and ktsnd's clients. Clients are known by interface, so a pod counts as using
// KTSN when any of its programs does.
func Find(holders []Holder, interfaces []Interface, list *nodeapi.ListReply) []Finding {
	clients := map[string]int{}
	for _, one := range list.GetAttachments() {
		clients[one.GetName()] = len(one.GetClients())
	}
	var findings []Finding
	for _, holder := range holders {
		if reason, message := judge(holder, interfaces, clients); reason != "" {
			findings = append(findings, Finding{holder, reason, message})
		}
	}
	return findings
}

func judge(holder Holder, interfaces []Interface, clients map[string]int) (reason, message string) {
	has, attached := false, false
	for _, one := range interfaces {
		if one.Namespace != holder.Namespace || one.Pod != holder.Pod {
			continue
		}
		has = true
		count, known := clients[one.Attachment]
		attached = attached || known
		// What the kernel captures needs no library.
		if count > 0 || known && one.Capture == "kernel" {
			return "", ""
		}
	}
	switch {
	case !has:
		return ReasonNoNetwork, fmt.Sprintf("container %s has a slot of ktsn.io/tsn, but the pod has no network with tsn-cni: "+
			"add the annotation k8s.v1.cni.cncf.io/networks", holder.Container)
	case !attached:
		return ReasonNotAttached, fmt.Sprintf("container %s has a slot of ktsn.io/tsn, but ktsnd does not know the pod's interface: "+
			"ktsn status on the node shows what is attached", holder.Container)
	}
	return ReasonNotLoaded, fmt.Sprintf("no program of container %s has used KTSN: it has sent nothing with SO_TXTIME yet, or libktsn.so is not "+
		"loaded: musl does not read /etc/ld.so.preload (set LD_PRELOAD=/usr/lib/ktsn/libktsn.so), static programs need "+
		`"capture": "kernel" in the network's configuration`, holder.Container)
}

// OnTheHost is what a finding means for a pod on the host's network (hostNetwork), which no CNI plugin ever sees.
func (f Finding) OnTheHost() Finding {
	if f.Reason == ReasonNoNetwork {
		f.Reason = ReasonOnTheHost
		f.Message = fmt.Sprintf("container %s has a slot of ktsn.io/tsn, but its pod is on the host's network (hostNetwork), which has no "+
			"interface by tsn-cni: leave hostNetwork away, or name the host's own device as an [[attachment]] in ktsnd's configuration", f.Container)
	}
	return f
}

// Patience remembers findings, and lets through those that last: a program needs its time to start, and the same thing is not said
// twice.
type Patience struct {
	after    time.Duration
	since    map[string]time.Time
	reported map[string]bool
}

// NewPatience lets findings through that have lasted so long.
func NewPatience(after time.Duration) *Patience {
	return &Patience{after, map[string]time.Time{}, map[string]bool{}}
}

// Lasting takes the findings of a moment: `lasting` are those that have lasted long enough, `news` those of them that were not
// reported yet. It forgets findings that are gone.
func (p *Patience) Lasting(now time.Time, findings []Finding) (lasting, news []Finding) {
	since, reported := map[string]time.Time{}, map[string]bool{}
	for _, finding := range findings {
		key := fmt.Sprintf("%s/%s/%s %s", finding.Namespace, finding.Pod, finding.Container, finding.Reason)
		begin, known := p.since[key]
		if !known {
			begin = now
		}
		since[key], reported[key] = begin, p.reported[key]
		if now.Sub(begin) < p.after {
			continue
		}
		lasting = append(lasting, finding)
		if !reported[key] {
			news = append(news, finding)
			reported[key] = true
		}
	}
	p.since, p.reported = since, reported
	return lasting, news
}
