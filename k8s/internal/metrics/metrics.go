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
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/rtcheck"
)

// scrapeMax is how long ktsnd has to answer. What it said holds for keptFor: it has one thread for such questions, which also attaches
// pods.
const (
	scrapeMax = 2 * time.Second
	keptFor   = time.Second
)

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
	// RTCheck is the result of the last real-time check; nil: none was made.
	RTCheck *rtcheck.Result
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
	up            = desc("up")
	clockSynced   = desc("clock_synchronised")
	taiOffset     = desc("clock_tai_offset_seconds")
	serving       = desc("healthy")
	threadStuck   = desc("thread_stuck")
	threadSilent  = desc("thread_silent_seconds")
	clockGood     = desc("clock_good")
	clockChanges  = desc("clock_transitions_total")
	clockSteps    = desc("clock_steps_total")
	clockHeld     = desc("clock_held_ports")
	warnings      = desc("warnings")
	attachments   = desc("attachments")
	clients       = desc("clients")
	taken         = desc("frames_taken_total")
	sent          = desc("frames_sent_total")
	sentOctets    = desc("sent_octets_total")
	late          = desc("frames_late_total")
	overrun       = desc("frames_overrun_total")
	waited        = desc("frames_waited_total")
	ringFull      = desc("sends_ring_full_total")
	dropped       = desc("frames_dropped_total")
	refused       = desc("clients_refused_total")
	deferred      = desc("frames_deferred_total")
	deferredLost  = desc("frames_deferred_failed_total")
	deferredFor   = desc("deferred_seconds")
	deferredTook  = desc("deferred_hand_over_seconds")
	bypassed      = desc("datagrams_bypassed_total")
	transmitError = desc("transmit_error_seconds")
	captureLag    = desc("capture_lag_seconds")
	ingressTaken  = desc("ingress_frames_taken_total")
	ingressLeft   = desc("ingress_frames_left_total")
	expected      = desc("receive_expected_total")
	hit           = desc("receive_hit_total")
	early         = desc("receive_early_total")
	missed        = desc("receive_missed_total")
	receiveSpun   = desc("receive_spun_seconds_total")
	receivers     = desc("receive_processes")
	receiveCPUs   = desc("receive_granted_cpus")
	portUp        = desc("port_up")
	portSpeed     = desc("port_link_speed_octets_per_second")
	portFrames    = desc("port_frames_total")
	portOverrun   = desc("port_transmission_overrun_total")
	portRefused   = desc("port_refused_total")
	portRetried   = desc("port_retried_total")
	portHandOver  = desc("port_hand_over_seconds")
	workerWakeUps = desc("worker_wake_ups_total")
	workerSpin    = desc("worker_spin_seconds_total")
	workerRests   = desc("worker_cpu_budget_spent_total")
	workerSteps   = desc("worker_clock_steps_total")
	workerBugs    = desc("worker_bugs_total")
	capacity      = desc("slots")
	healthy       = desc("slots_healthy")
	nodes         = desc("overlay_nodes")
	conflicts     = desc("overlay_conflicts")
	unloaded      = desc("containers_without_library")
	notReady      = desc("agent_not_ready")
	rtAt          = desc("rt_check_timestamp_seconds")
	rtFailed      = desc("rt_check_failed")
	rtMax         = desc("rt_check_latency_max_seconds")
	rtVerdict     = desc("rt_check_verdict")
	rtMargin      = desc("rt_check_margin_ratio")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, description := range described {
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

// histogram shows a distribution of nanoseconds in seconds. One that cannot be read is left out.
func (o *out) histogram(d *prometheus.Desc, of *nodeapi.Histogram, name string) {
	if found, err := decode(of.GetHdrV2(), names.bounds); err == nil {
		o.metrics = append(o.metrics, prometheus.MustNewConstHistogram(d, found.count, found.sum, found.buckets, name))
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
	o.ofRTCheck(agent.RTCheck)
	parts := make([]string, 0, len(agent.Faults))
	for part := range agent.Faults {
		parts = append(parts, part)
	}
	sort.Strings(parts)
	for _, part := range parts {
		o.gauge(notReady, 1, part)
	}
}

// ofRTCheck shows the last check. One without a verdict has no figures.
func (o *out) ofRTCheck(result *rtcheck.Result) {
	if result == nil {
		return
	}
	o.gauge(rtAt, float64(result.At.Unix()))
	o.gauge(rtFailed, flag(result.Error != ""))
	if result.Error != "" {
		return
	}
	o.gauge(rtMax, float64(result.MaxNs)/1e9)
	seen := map[string]bool{}
	for _, service := range result.Services {
		// An annotation is anyone's who may change Nodes: a second figure of one name would spoil the scrape.
		if rank := rtcheck.Rank(service.Verdict); rank >= 0 && !seen[service.Service] && utf8.ValidString(service.Service) {
			seen[service.Service] = true
			o.gauge(rtVerdict, float64(rank), service.Service)
			o.gauge(rtMargin, service.Margin, service.Service)
		}
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
	o.reasons(refused, one.GetClientsRefused(), name)
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
	o.histogram(transmitError, one.GetTransmitError(), name)
	if lag := one.GetCaptureLag(); lag.GetCount() > 0 {
		o.histogram(captureLag, lag, name)
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
