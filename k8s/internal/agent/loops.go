// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodefile"
	"ktsn.io/ktsn/k8s/internal/podwatch"
)

const (
	// healthEvery: ktsnd knows of a thread that is stuck after 1.5 s at most, and /readyz within two.
	healthEvery = 400 * time.Millisecond
	// capacityEvery looks at ktsnd's health its gates are looked at too, which its workers answer for.
	capacityEvery = 3
	healthMax     = 800 * time.Millisecond
	// busyGrace is how long a ktsnd that is there may take to answer that it serves: attaching fifty pods at once keeps it busy, and a
	// pod that the kubelet refuses for unhealthy slots is lost for good.
	busyGrace    = 30 * time.Second
	installEvery = 5 * time.Minute
	installRetry = 5 * time.Second
	podsEvery    = 15 * time.Second
	// unloadedAfter is how long a program may take to send its first frame.
	unloadedAfter = time.Minute
)

// healthLoop ties the slots' health to ktsnd's, and their number to its gate schedule.
func (a *Agent) healthLoop(ctx context.Context) {
	var state health
	looks := 0
	a.every(ctx, partDaemon, always(healthEvery), nil, func(ctx context.Context) {
		err := a.askHealth(ctx)
		a.setPart(partDaemon, err)
		if err == nil && looks%capacityEvery == 0 {
			a.askCapacity(ctx)
		}
		looks++
		a.setPart(partPlugin, a.plugin.Registered())
		healthy := state.seen(time.Now(), err, a.config.HealthGrace) && a.parts.get(partInstall) == nil
		a.mutex.Lock()
		count := a.file.Capacity
		a.statuses.Capacity, a.statuses.Healthy = count, healthy
		a.mutex.Unlock()
		a.plugin.SetDevices(count, healthy)
		if folder, err := a.installer.Folder(); err == nil {
			if err := a.plugin.WriteCDI(folder); err != nil {
				a.config.Log.Warn("CDI", "error", err)
			}
		}
		a.writeNodeFile(func(*nodefile.Node) {})
	})
}

// health distinguishes a ktsnd that is away from one that is busy.
type health struct{ answered, there time.Time }

// seen takes the result of a health call. It returns true when the slots can be used. With a stuck worker no frame leaves, so the slots cannot be
// used until ktsnd is healthy again. With another stuck thread the frames of attached pods leave.
func (h *health) seen(now time.Time, err error, grace time.Duration) bool {
	var answer *notServingError
	switch {
	case err == nil:
		h.answered, h.there = now, now
	case errors.As(err, &answer) && answer.isWorker:
		*h = health{}
	case answer != nil, nodeapi.CodeOf(err) == codes.DeadlineExceeded:
		h.there = now
	}
	return now.Sub(h.there) <= max(grace, healthMax) && now.Sub(h.answered) <= max(grace, busyGrace)
}

func (a *Agent) askHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthMax)
	defer cancel()
	health, err := a.daemon.Health(ctx, &nodeapi.HealthRequest{})
	if err != nil {
		return err
	}
	return notServing(health)
}

// workerThread is the name of the threads that send frames.
const workerThread = "ktsn-worker"

// notServingError is the answer of a ktsnd that is there and does not serve.
type notServingError struct {
	text     string
	isWorker bool // a thread that sends frames is stuck
}

func (e *notServingError) Error() string { return e.text }

// notServing returns the reason why ktsnd does not serve; nil: it does.
func notServing(health *nodeapi.HealthReply) error {
	if health.GetServing() {
		return nil
	}
	var stuck []string
	answer := &notServingError{text: "ktsnd is there but does not serve"}
	for _, thread := range health.GetThreads() {
		if thread.GetIsStuck() {
			answer.isWorker = answer.isWorker || thread.GetName() == workerThread
			name := strings.TrimSpace(thread.GetName() + " " + thread.GetDevice())
			stuck = append(stuck, fmt.Sprintf("%s for %s", name, time.Duration(thread.GetSilentNs()).Round(100*time.Millisecond)))
		}
	}
	if len(stuck) > 0 {
		answer.text = "threads of ktsnd are stuck: " + strings.Join(stuck, ", ")
	}
	return answer
}

// askCapacity updates the number of slots. It keeps the old number when ktsnd does not answer.
func (a *Agent) askCapacity(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, healthMax)
	defer cancel()
	answer, err := a.daemon.GetSchedule(ctx, &nodeapi.GetScheduleRequest{})
	if err != nil {
		return
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var found *nodeapi.ScheduleState
	for _, state := range answer.GetPorts() {
		if state.GetPort() == a.file.Uplink {
			found = state
		}
	}
	a.file.Capacity = a.config.Capacity.Of(found)
}

// writeNodeFile changes and writes node.json.
func (a *Agent) writeNodeFile(change func(*nodefile.Node)) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	change(&a.file)
	if err := nodefile.Write(a.nodeFilePath(), a.file); err != nil {
		a.config.Log.Warn("node.json", "error", err)
	}
}

// skew is an error while the node's ktsnd has another version than this agent.
func (a *Agent) skew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthMax)
	defer cancel()
	// One that does not answer is a fault of another part.
	if err := compatible(ctx, a.daemon); nodeapi.CodeOf(err) == codes.FailedPrecondition {
		return fmt.Errorf("tsn-cni of version %s waits for ktsnd's update: %w", nodeapi.Version, err)
	}
	return nil
}

// compatible is an error where ktsnd has another version, or does not answer; a test's double may have no version.
func compatible(ctx context.Context, daemon nodeapi.NodeClient) error {
	if known, ok := daemon.(interface{ Compatible(context.Context) error }); ok {
		return known.Compatible(ctx)
	}
	return nil
}

func (a *Agent) installLoop(ctx context.Context) {
	pause := installEvery
	a.every(ctx, partInstall, func() time.Duration { return pause }, nil, func(ctx context.Context) {
		// The node's tsn-cni serves pods with a ktsnd of its own version, and goes on with that. The agent is not ready meanwhile: where
		// ktsnd's update stops, so does the agents'.
		skew := a.skew(ctx)
		a.setPart(partVersion, skew)
		err := a.installer.Install(skew == nil)
		a.setPart(partInstall, err)
		if pause = installEvery; err != nil || skew != nil {
			pause = installRetry
		}
	})
}

// podLoop finds containers that have a slot and do not use it, and removes versions of the library that are out of use.
func (a *Agent) podLoop(ctx context.Context) {
	socket := filepath.Join(a.config.KubeletDir, "pod-resources", "kubelet.sock")
	a.every(ctx, "pods", always(podsEvery), nil, func(ctx context.Context) {
		holders, err := podwatch.Holders(ctx, socket, a.config.Resource)
		if err != nil {
			a.config.Log.Debug("who has slots is not known", "error", err)
			return
		}
		var inUse []string
		for _, holder := range holders {
			inUse = append(inUse, holder.Devices...)
		}
		if err := a.installer.Clean(inUse, time.Now()); err != nil {
			a.config.Log.Debug("old versions stay", "error", err)
		}
		list, err := a.daemon.List(ctx, &nodeapi.ListRequest{})
		if err != nil {
			return // healthLoop reports that ktsnd is away
		}
		lasting, news := a.patience.Lasting(time.Now(), podwatch.Find(holders, interfacesOf(a.config.CNIStateDir), list))
		a.mutex.Lock()
		a.statuses.Unloaded = len(lasting)
		a.mutex.Unlock()
		for _, finding := range news {
			a.report(finding)
		}
		a.tell(ctx)
	})
}

// report logs a finding and queues an Event of the pod; tell sends the queue to the API server.
func (a *Agent) report(finding podwatch.Finding) {
	pod, err := a.pods.Get(finding.Namespace + "/" + finding.Pod)
	if err == nil && pod.Spec.HostNetwork {
		finding = finding.OnTheHost()
	}
	a.config.Log.Warn("container does not use its slot", "namespace", finding.Namespace, "pod", finding.Pod,
		"container", finding.Container, "reason", finding.Reason, "message", finding.Message)
	if err != nil {
		return
	}
	now := metav1.Now()
	a.untold = append(a.untold, &kinds.Event{
		// A name of its own for each, as client-go's recorder gives it, within the length of names; no part of it ends in a dot or hyphen.
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("%s.%x", strings.TrimRight(fmt.Sprintf("%.230s", pod.Name), "-."), now.UnixNano())},
		InvolvedObject: kinds.Reference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			FieldPath: fmt.Sprintf("spec.containers{%s}", finding.Container),
		},
		Reason: finding.Reason, Message: finding.Message, Type: kinds.EventTypeWarning, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: kinds.EventSource{Component: "ktsn-node-agent", Host: a.config.NodeName},
	})
}

// untoldMax events wait for an API server that is away. Older ones are in the log.
const untoldMax = 1000

// tell gives the API server the events in their order. Those that it does not answer to wait for the next time; one that it refuses is logged.
func (a *Agent) tell(ctx context.Context) {
	a.untold = a.untold[max(len(a.untold)-untoldMax, 0):]
	ctx, cancel := context.WithTimeout(ctx, patchMax)
	defer cancel()
	for len(a.untold) > 0 {
		err := a.kube.Tell(ctx, a.untold[0])
		var refused apierrors.APIStatus
		if err != nil && !errors.As(err, &refused) {
			a.config.Log.Debug("events wait", "count", len(a.untold), "error", err)
			return
		}
		if err != nil {
			a.config.Log.Warn("event refused", "namespace", a.untold[0].Namespace, "event", a.untold[0].Name, "error", err)
		}
		a.untold = a.untold[1:]
	}
}
