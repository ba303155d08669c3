// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ktsn.io/ktsn/k8s/internal/metrics"
)

// listen serves /metrics, /readyz and /livez; nil where nobody wants them.
func (a *Agent) listen() (*http.Server, error) {
	if a.config.Listen == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", a.config.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w: is another agent running on this node?", err)
	}
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second}
	go func() { _ = server.Serve(listener) }() // ends with Close
	a.config.Log.Info("listening", "address", listener.Addr().String())
	return server, nil
}

// handler answers a part's faults in words: a person reads /readyz when a pod does not get ready.
func (a *Agent) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.New(a.daemon, a.status), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if faults := a.parts.String(); faults != "" {
			http.Error(w, faults, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// status is what the metrics say of the agent.
func (a *Agent) status() metrics.Agent {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	status := a.statuses
	status.Faults = a.parts.texts()
	return status
}
