// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Parts of the work, as metrics call them.
const (
	partPrefixes  = "prefixes"
	partSchedules = "gateschedules"
	partStreams   = "streams"
)

// metrics of a controller. What counts objects is the leader's: others do not look at them.
type metrics struct {
	leader    prometheus.Gauge
	schedules *prometheus.GaugeVec
	streams   *prometheus.GaugeVec
	durations *prometheus.HistogramVec
	failures  *prometheus.CounterVec
}

func newMetrics() metrics {
	const namespace = "ktsn_controller"
	m := metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "leader", Help: "1: this one leads."}),
		schedules: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "gate_schedules", Help: "GateSchedules by phase."}, []string{"phase"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams", Help: "Streams by their condition Accepted: accepted, refused, waiting."}, []string{"state"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "reconcile_duration_seconds", Help: "How long a look at everything took, by part.",
			Buckets: []float64{0.001, 0.005, 0.02, 0.1, 0.5, 2, 10}}, []string{"part"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconcile_errors_total", Help: "Looks that ended with an error, by part; the log says which."}, []string{"part"}),
	}
	for _, part := range []string{partPrefixes, partSchedules, partStreams} {
		m.failures.WithLabelValues(part)
	}
	return m
}

// Registry of the metrics, for /metrics.
func (c *Controller) Registry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	m := &c.metrics
	registry.MustRegister(m.leader, m.schedules, m.streams, m.durations, m.failures, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// timed does one part of the work.
func (m *metrics) timed(part string, act func() error) error {
	begin := time.Now()
	err := act()
	m.durations.WithLabelValues(part).Observe(time.Since(begin).Seconds())
	if err != nil {
		m.failures.WithLabelValues(part).Inc()
	}
	return err
}

// counted sets a gauge by label; what is not there any more is 0.
func counted(gauge *prometheus.GaugeVec, known []string, counts map[string]int) {
	for _, label := range known {
		gauge.WithLabelValues(label).Set(float64(counts[label]))
	}
}
