// SPDX-License-Identifier: Apache-2.0

// Package metrics shows ktsnd's counters, and the agent's own, to Prometheus.
//
// In: ktsnd's Statistics, Health and List, asked at most once a second; what the agent knows of itself. Out: metrics with
// the prefix ktsn_ in base units (seconds, octets), labels port, attachment, class, reason. A scrape must never
// wait longer than its deadline for ktsnd: without an answer ktsn_up is 0 and the rest is left out.
package metrics

import (
	"context"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// scrapeMax is how long ktsnd has to answer. What it said holds for keptFor: it has one thread for such questions, which also attaches
// pods.
const (
	scrapeMax = 2 * time.Second
	keptFor   = time.Second
)

// errorBounds of the transmit error, in seconds: a microsecond is what a shared uplink promises.
var errorBounds = []float64{
	250e-9, 500e-9, 1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 10e-3, 100e-3,
}

// Agent is what the agent says of itself.
type Agent struct {
	// Capacity counts the slots that are offered, Healthy whether they can be used.
	Capacity int
	Healthy  bool
	// Nodes counts the other nodes of the TSN network, Conflicts the claims that were refused.
	Nodes     int
	Conflicts int
	// Unloaded counts containers with a slot where no program of the pod uses KTSN.
	Unloaded int
	// Faults are what the agent is not ready for, by part.
	Faults map[string]string
}

// Collector implements prometheus.Collector.
type Collector struct {
	daemon nodeapi.NodeClient
	agent  func() Agent
	now    func() time.Time
	// One question at a time; its answer serves all scrapes that wait.
	mutex   sync.Mutex
	kept    []prometheus.Metric
	askedAt time.Time
}

// New makes a collector that asks ktsnd, and `agent` for the agent's own.
func New(daemon nodeapi.NodeClient, agent func() Agent) *Collector {
	return &Collector{daemon: daemon, agent: agent, now: time.Now}
}

var (
	port       = []string{"port"}
	portClass  = []string{"port", "class"}
	portReason = []string{"port", "reason"}
	attachment = []string{"attachment"}
	withReason = []string{"attachment", "reason"}

	threadDevice = []string{"thread", "device"}
)

var descriptions []*prometheus.Desc

func desc(name, help string, labels []string) *prometheus.Desc {
	made := prometheus.NewDesc("ktsn_"+name, help, labels, nil)
	descriptions = append(descriptions, made)
	return made
}

var (
	up            = desc("up", "1: ktsnd answers.", nil)
	clockSynced   = desc("clock_synchronised", "1: the kernel's clock is synchronised; transmit times mean something.", nil)
	taiOffset     = desc("clock_tai_offset_seconds", "TAI less UTC as the kernel has it; 0 is wrong.", nil)
	serving       = desc("healthy", "1: ktsnd answers, takes frames, and none of its threads is stuck.", nil)
	threadStuck   = desc("thread_stuck", "1: this thread of ktsnd is stuck.", threadDevice)
	threadSilent  = desc("thread_silent_seconds", "How long this thread of ktsnd has not answered; 0 = it has.", threadDevice)
	clockGood     = desc("clock_good", "1: the clock is good, as the ports' unsynchronised sees it.", []string{"source"})
	clockChanges  = desc("clock_transitions_total", "Times that the clock went from good to not good or back.", nil)
	clockSteps    = desc("clock_steps_total", "Times that the clock was set.", nil)
	clockHeld     = desc("clock_held_ports", "Ports whose frames wait for the clock, or are dropped, now.", nil)
	warnings      = desc("warnings", "Warnings of ktsnd at this moment; ktsn status shows them.", nil)
	attachments   = desc("attachments", "Pod interfaces attached.", nil)
	clients       = desc("clients", "Processes of an attachment that use KTSN now.", attachment)
	taken         = desc("frames_taken_total", "Frames taken over from programs.", attachment)
	sent          = desc("frames_sent_total", "Frames sent.", attachment)
	sentOctets    = desc("sent_octets_total", "Octets sent, without FCS.", attachment)
	late          = desc("frames_late_total", "Frames whose transmit time had passed when the program sent them.", attachment)
	overrun       = desc("frames_overrun_total", "Frames sent more than 1 µs after their transmit time as the worker came late.", attachment)
	waited        = desc("frames_waited_total", "Frames whose transmit time had passed while the program waited for a slot of its ring.", attachment)
	ringFull      = desc("sends_ring_full_total", "Sends that failed with EAGAIN as their socket had no slot left in its ring.", attachment)
	dropped       = desc("frames_dropped_total", "Frames dropped, by reason.", withReason)
	deferred      = desc("frames_deferred_total", "Of the frames sent, those that left by a thread that is not real-time.", attachment)
	deferredLost  = desc("frames_deferred_failed_total", "Of the frames sent, those that the device did not take from that thread.", attachment)
	deferredFor   = desc("deferred_seconds", "How long frames have left by a thread that is not real-time; 0 = they leave by the worker.", attachment)
	deferredTook  = desc("deferred_hand_over_seconds", "Longest hand-over of the last minute, while frames are deferred.", attachment)
	bypassed      = desc("datagrams_bypassed_total", "Datagrams left to the kernel, by reason.", withReason)
	transmitError = desc("transmit_error_seconds", "From the transmit time to the hand-over to the port.", attachment)
	ingressTaken  = desc("ingress_frames_taken_total", "Frames that took the ingress fast path into the pod.", attachment)
	ingressLeft   = desc("ingress_frames_left_total", "Frames for the pod that were left to the kernel, by reason.", withReason)
	expected      = desc("receive_expected_total", "Waits for an arrival that was predicted, as the programs report it.", attachment)
	hit           = desc("receive_hit_total", "Expected arrivals that came while the thread was awake for them.", attachment)
	early         = desc("receive_early_total", "Expected arrivals that came before the thread was awake for them.", attachment)
	missed        = desc("receive_missed_total", "Expected arrivals that did not come in their window.", attachment)
	receiveSpun   = desc("receive_spun_seconds_total", "Time that threads spun for expected arrivals.", attachment)
	receivers     = desc("receive_processes", "Processes that may spin for expected arrivals now.", attachment)
	receiveCPUs   = desc("receive_granted_cpus", "CPUs that these processes together may spin.", attachment)
	portUp        = desc("port_up", "1: the link is up.", port)
	portSpeed     = desc("port_link_speed_octets_per_second", "Link speed in octets; 0 = unknown.", port)
	portFrames    = desc("port_frames_total", "Frames handed over, by traffic class.", portClass)
	portOverrun   = desc("port_transmission_overrun_total", "Hand-overs that ended after their window, by traffic class.", portClass)
	portRefused   = desc("port_refused_total", "Times that the port did not take a frame, by reason.", portReason)
	portRetried   = desc("port_retried_total", "Frames that the port took when they were tried again.", port)
	portHandOver  = desc("port_hand_over_seconds", "From kick to wire, 99.9 % of the last thousand frames or so.", port)
	workerWakeUps = desc("worker_wake_ups_total", "Times that the worker woke up.", port)
	workerSpin    = desc("worker_spin_seconds_total", "Time that the worker spent spinning.", port)
	workerRests   = desc("worker_cpu_budget_spent_total", "Rests of the worker, as it had used its share of the CPU.", port)
	workerSteps   = desc("worker_clock_steps_total", "Steps of the clock that the worker saw.", port)
	workerBugs    = desc("worker_bugs_total", "Faults of ktsnd itself: report them.", port)
	capacity      = desc("slots", "Slots of ktsn.io/tsn that this node offers.", nil)
	healthy       = desc("slots_healthy", "1: the slots can be used.", nil)
	nodes         = desc("overlay_nodes", "Other nodes of the TSN network.", nil)
	conflicts     = desc("overlay_conflicts", "Claims of nodes that were refused; the agent's log names them.", nil)
	unloaded      = desc("containers_without_library", "Containers with a slot in whose pod no program uses KTSN.", nil)
	notReady      = desc("agent_not_ready", "1: this part of the agent is not ready; /readyz says why.", []string{"part"})
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, description := range descriptions {
		to <- description
	}
}

// out gathers metrics of one scrape.
type out struct{ metrics []prometheus.Metric }

func (o *out) gauge(d *prometheus.Desc, value float64, labels ...string) {
	o.metrics = append(o.metrics, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...))
}

func (o *out) counter(d *prometheus.Desc, value uint64, labels ...string) {
	o.metrics = append(o.metrics, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...))
}

// seconds is a counter of nanoseconds, in seconds.
func (o *out) seconds(d *prometheus.Desc, nanos uint64, labels ...string) {
	o.metrics = append(o.metrics, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(nanos)/1e9, labels...))
}

func (o *out) reasons(d *prometheus.Desc, counts map[string]uint64, name string) {
	for reason, count := range counts {
		o.counter(d, count, name, reason)
	}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	o := &out{}
	o.ofAgent(c.agent())
	for _, one := range append(o.metrics, c.ofDaemon()...) {
		metrics <- one
	}
}

// ofDaemon is what ktsnd says, or said less than keptFor ago.
func (c *Collector) ofDaemon() []prometheus.Metric {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.askedAt.IsZero() || c.now().Sub(c.askedAt) >= keptFor {
		o := &out{}
		c.ask(o)
		c.kept, c.askedAt = o.metrics, c.now()
	}
	return c.kept
}

func (c *Collector) ask(o *out) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeMax)
	defer cancel()
	health, err := c.daemon.Health(ctx, &nodeapi.HealthRequest{})
	o.gauge(serving, flag(err == nil && health.GetServing()))
	if err != nil {
		o.gauge(up, 0)
		return
	}
	o.ofHealth(health)
	// A ktsnd that answers and does not serve is there all the same: its counters show what goes wrong.
	o.gauge(up, 1)
	o.gauge(clockSynced, flag(health.GetClockSynchronised()))
	o.gauge(taiOffset, float64(health.GetTaiOffsetSeconds()))
	o.gauge(warnings, float64(len(health.GetWarnings())))
	if list, err := c.daemon.List(ctx, &nodeapi.ListRequest{}); err == nil {
		o.ofList(list)
	}
	if statistics, err := c.daemon.Statistics(ctx, &nodeapi.StatisticsRequest{}); err == nil {
		for _, one := range statistics.GetAttachments() {
			o.ofAttachment(one)
		}
		o.ofPorts(statistics)
	}
}

func (o *out) ofHealth(health *nodeapi.HealthReply) {
	for _, thread := range health.GetThreads() {
		o.gauge(threadStuck, flag(thread.GetIsStuck()), thread.GetName(), thread.GetDevice())
		o.gauge(threadSilent, float64(thread.GetSilentNs())/1e9, thread.GetName(), thread.GetDevice())
	}
	if clock := health.GetClock(); clock != nil {
		o.gauge(clockGood, flag(clock.GetIsGood()), clock.GetSource())
		o.counter(clockChanges, clock.GetTransitions())
		o.counter(clockSteps, clock.GetSteps())
		o.gauge(clockHeld, float64(len(clock.GetHolding())))
	}
}

func (o *out) ofAgent(agent Agent) {
	o.gauge(capacity, float64(agent.Capacity))
	o.gauge(healthy, flag(agent.Healthy))
	o.gauge(nodes, float64(agent.Nodes))
	o.gauge(conflicts, float64(agent.Conflicts))
	o.gauge(unloaded, float64(agent.Unloaded))
	parts := make([]string, 0, len(agent.Faults))
	for part := range agent.Faults {
		parts = append(parts, part)
	}
	sort.Strings(parts)
	for _, part := range parts {
		o.gauge(notReady, 1, part)
	}
}

func (o *out) ofList(list *nodeapi.ListReply) {
	o.gauge(attachments, float64(len(list.GetAttachments())))
	for _, one := range list.GetAttachments() {
		o.gauge(clients, float64(len(one.GetClients())), one.GetName())
	}
	for _, one := range list.GetPorts() {
		if one.GetNetns() == "" { // pods' own interfaces would come and go with them
			o.gauge(portUp, flag(one.GetUp()), one.GetDevice())
			o.gauge(portSpeed, float64(one.GetLinkSpeed())/8, one.GetDevice())
		}
	}
}

func (o *out) ofAttachment(one *nodeapi.AttachmentStatistics) {
	name := one.GetName()
	o.counter(taken, one.GetTaken(), name)
	o.counter(sent, one.GetSent(), name)
	o.counter(sentOctets, one.GetSentOctets(), name)
	o.counter(late, one.GetLate(), name)
	o.counter(overrun, one.GetOverrun(), name)
	o.counter(waited, one.GetWaited(), name)
	o.counter(ringFull, one.GetRingFull(), name)
	o.counter(deferred, one.GetDeferred(), name)
	o.counter(deferredLost, one.GetDeferredFailed(), name)
	o.gauge(deferredFor, float64(one.GetDeferral().GetForNs())/1e9, name)
	if deferral := one.GetDeferral(); deferral != nil {
		o.gauge(deferredTook, float64(deferral.GetLongestHandOverNs())/1e9, name)
	}
	o.reasons(dropped, one.GetDropped(), name)
	o.reasons(bypassed, one.GetBypassed(), name)
	if ingress := one.GetIngress(); ingress != nil {
		o.counter(ingressTaken, ingress.GetTaken(), name)
		o.reasons(ingressLeft, ingress.GetLeft(), name)
	}
	if receive := one.GetReceive(); receive != nil {
		counts := receive.GetCounts()
		o.counter(expected, counts.GetExpected(), name)
		o.counter(hit, counts.GetHit(), name)
		o.counter(early, counts.GetEarly(), name)
		o.counter(missed, counts.GetMissed(), name)
		o.seconds(receiveSpun, counts.GetSpunNs(), name)
		o.gauge(receivers, float64(receive.GetProcesses()), name)
		o.gauge(receiveCPUs, float64(receive.GetGrantedPermille())/1e3, name)
	}
	if found, err := decode(one.GetTransmitError().GetHdrV2(), errorBounds); err == nil {
		o.metrics = append(o.metrics, prometheus.MustNewConstHistogram(transmitError, found.count, found.sum, found.buckets, name))
	}
}

func (o *out) ofPorts(statistics *nodeapi.StatisticsReply) {
	for _, one := range statistics.GetPorts() {
		if one.GetNetns() != "" {
			continue
		}
		device := one.GetDevice()
		for class, count := range one.GetFrames() {
			o.counter(portFrames, count, device, strconv.Itoa(class))
		}
		for class, count := range one.GetTransmissionOverrun() {
			o.counter(portOverrun, count, device, strconv.Itoa(class))
		}
		o.reasons(portRefused, one.GetRefused(), device)
		o.counter(portRetried, one.GetRetried(), device)
		o.gauge(portHandOver, float64(one.GetHandOverNs())/1e9, device)
	}
	for _, worker := range statistics.GetWorkers() {
		device := worker.GetUplink()
		o.counter(workerWakeUps, worker.GetWakeUps(), device)
		o.seconds(workerSpin, worker.GetSpinNs(), device)
		o.counter(workerRests, worker.GetCpuBudgetSpent(), device)
		o.counter(workerSteps, worker.GetClockSteps(), device)
		o.counter(workerBugs, worker.GetBugs(), device)
	}
}
