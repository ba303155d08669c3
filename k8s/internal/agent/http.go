// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ktsn.io/ktsn/k8s/internal/guard"
	"ktsn.io/ktsn/k8s/internal/metrics"
)

// Limits of scrapes: how many at once, and how long one takes.
const (
	scrapesMax   = 4
	scrapeWithin = 10 * time.Second
)

// listen serves /metrics, /readyz and /livez at the configured addresses: without TLS at the first; by TLS at the second, where /metrics needs a
// right that the API server checks.
func (a *Agent) listen() (servers []*http.Server, err error) {
	serve := func(listener net.Listener, handler http.Handler) {
		server := guard.Server(handler)
		servers = append(servers, server)
		go func() { _ = server.Serve(listener) }() // ends with Close
		a.config.Log.Info("listening", "address", listener.Addr().String())
	}
	scrape := a.scrape()
	if a.config.Listen != "" {
		listener, err := guard.Listen(a.config.Listen)
		if err != nil {
			return nil, fmt.Errorf("--listen: %w: is another agent running on this node?", err)
		}
		serve(listener, a.handler(scrape, true))
	}
	if a.config.SecureListen != "" {
		listener, err := guard.ListenTLS(a.config.SecureListen, a.config.TLSCert, a.config.TLSKey)
		if err != nil {
			for _, server := range servers {
				server.Close()
			}
			return nil, fmt.Errorf("--secure-listen: %w", err)
		}
		serve(listener, a.handler(guard.New(a.reviews, a.config.Log).Wrap(scrape), false))
	}
	return servers, nil
}

// scrape answers with all metrics.
func (a *Agent) scrape() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.New(a.daemon, a.status), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax, Timeout: scrapeWithin})
}

// handler answers with the text of a fault at the local address alone: a person reads /readyz when a pod does not get ready.
func (a *Agent) handler(scrape http.Handler, isLocal bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", scrape)
	for path, fault := range map[string]func() error{"/livez": a.beats.stuck, "/readyz": a.notReady} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			err := fault()
			if err != nil && !isLocal {
				err = errors.New("no: the log says why")
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	return mux
}

// notReady returns an error that names the parts that are not ready.
func (a *Agent) notReady() error {
	if faults := a.parts.String(); faults != "" {
		return errors.New(faults)
	}
	return nil
}

// status returns the agent's own state for the metrics.
func (a *Agent) status() metrics.Agent {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	status := a.statuses
	status.Faults = a.parts.texts()
	return status
}
