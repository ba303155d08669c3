// SPDX-License-Identifier: Apache-2.0

// Package dashboard describes KTSN's Grafana dashboard by types, and writes it as the JSON that Grafana imports.
//
// In: nothing but the description below. Out: k8s/deploy/helm/ktsn/monitoring/dashboard.json, the same octets each time. A test
// compares the file, and holds each query against the table of metrics; tests/tests/metrics.rs asks a real Prometheus.
package dashboard

import "encoding/json"

// Unit is how Grafana shows values.
type Unit string

// The units that are used.
const (
	Number     Unit = "short"
	PerSecond  Unit = "cps"
	Seconds    Unit = "s"
	BitsPer    Unit = "bps"
	Share      Unit = "percentunit"
	YesNo      Unit = "bool_yes_no"
	Cores      Unit = "none"
	HeatSecond Unit = "heatmap"
)

// Query is one expression of PromQL, and the legend of its series.
type Query struct{ Expression, Legend string }

// Panel is a graph, a figure or a heat map.
type Panel struct {
	Title, Explanation string
	Unit               Unit
	Queries            []Query
	// IsFigure: the last value alone.
	IsFigure bool
	// Alarm: a figure is red from here on, or (IsAlarmBelow) up to here.
	Alarm        float64
	IsAlarmBelow bool
}

// Row is a heading with its panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Instance and attachment of all queries are what the dashboard's variables say.
const (
	ofInstance   = `{instance=~"$instance"}`
	ofAttachment = `{instance=~"$instance",attachment=~"$attachment"}`
)

func rate(metric string) string { return "rate(" + metric + "[$__rate_interval])" }

// perAttachment is the rate of a counter of attachments.
func perAttachment(metric string) string {
	return "sum by (instance, attachment) (" + rate(metric+ofAttachment) + ")"
}

func perReason(metric string) []Query {
	return []Query{{"sum by (instance, attachment, reason) (" + rate(metric+ofAttachment) + ")", "{{attachment}} {{reason}}"}}
}

func perPort(metric string) string { return rate(metric + ofInstance) }

func quantile(share, metric string) Query {
	return Query{"histogram_quantile(" + share + ", sum by (instance, attachment, le) (" + rate(metric+"_bucket"+ofAttachment) + "))",
		"{{attachment}} " + share}
}

func one(expression, legend string) []Query { return []Query{{expression, legend}} }

func figure(title, explanation string, unit Unit, alarm float64, isBelow bool, expression string) Panel {
	return Panel{Title: title, Explanation: explanation, Unit: unit, IsFigure: true, Alarm: alarm, IsAlarmBelow: isBelow,
		Queries: one(expression, "{{instance}}")}
}

// Rows is the dashboard.
func Rows() []Row {
	return []Row{
		{"State", []Panel{
			figure("ktsnd answers", "", YesNo, 0, true, "min(ktsn_up"+ofInstance+")"),
			figure("Healthy", "It answers, takes frames, and none of its threads is stuck.", YesNo, 0, true, "min(ktsn_healthy"+ofInstance+")"),
			figure("Clock good", "As the ports' unsynchronised sees it.", YesNo, 0, true, "min(ktsn_clock_good"+ofInstance+")"),
			figure("Warnings", "ktsn status shows them.", Number, 1, false, "sum(ktsn_warnings"+ofInstance+")"),
			figure("Attachments", "Pod interfaces attached.", Number, 1e9, false, "sum(ktsn_attachments"+ofInstance+")"),
			figure("Programs", "Processes that use KTSN now.", Number, 1e9, false, "sum(ktsn_clients"+ofAttachment+")"),
		}},
		{"Frames", []Panel{
			{Title: "Taken and sent", Unit: PerSecond, Queries: []Query{
				{perAttachment("ktsn_frames_taken_total"), "{{attachment}} taken"},
				{perAttachment("ktsn_frames_sent_total"), "{{attachment}} sent"}}},
			{Title: "Sent", Explanation: "Without FCS.", Unit: BitsPer,
				Queries: one("8 * "+perAttachment("ktsn_sent_octets_total"), "{{attachment}}")},
			{Title: "Dropped, by reason", Unit: PerSecond, Queries: perReason("ktsn_frames_dropped_total")},
			{Title: "Late, by cause", Explanation: "late: the program sent too late. waited: its ring was full. overrun: the worker came more than 1 µs late.",
				Unit: PerSecond, Queries: []Query{
					{perAttachment("ktsn_frames_late_total"), "{{attachment}} late"},
					{perAttachment("ktsn_frames_waited_total"), "{{attachment}} waited"},
					{perAttachment("ktsn_frames_overrun_total"), "{{attachment}} overrun"}}},
			{Title: "Left to the kernel, by reason", Unit: PerSecond, Queries: perReason("ktsn_datagrams_bypassed_total")},
			{Title: "Sends that found the ring full", Unit: PerSecond,
				Queries: one(perAttachment("ktsn_sends_ring_full_total"), "{{attachment}}")},
		}},
		{"Transmit error", []Panel{
			{Title: "Transmit error, quantiles", Explanation: "From the transmit time to the hand-over to the port.", Unit: Seconds, Queries: []Query{
				quantile("0.5", "ktsn_transmit_error_seconds"), quantile("0.99", "ktsn_transmit_error_seconds"),
				quantile("0.999", "ktsn_transmit_error_seconds")}},
			{Title: "Transmit error, distribution", Unit: HeatSecond,
				Queries: one("sum by (le) ("+rate("ktsn_transmit_error_seconds_bucket"+ofAttachment)+")", "{{le}}")},
			{Title: "Lag of captured frames", Explanation: "From the capture to the taking over.", Unit: Seconds,
				Queries: []Query{quantile("0.99", "ktsn_capture_lag_seconds")}},
			{Title: "Deferred for", Explanation: "Frames leave by a thread that is not real-time.", Unit: Seconds,
				Queries: one("ktsn_deferred_seconds"+ofAttachment, "{{attachment}}")},
		}},
		{"Ports and workers", []Panel{
			{Title: "Frames, by traffic class", Unit: PerSecond, Queries: one(perPort("ktsn_port_frames_total"), "{{port}} {{class}}")},
			{Title: "Ended after their window", Unit: PerSecond,
				Queries: one(perPort("ktsn_port_transmission_overrun_total"), "{{port}} {{class}}")},
			{Title: "Hand-over", Explanation: "From kick to wire, 99.9 % of the last thousand frames or so.", Unit: Seconds,
				Queries: one("ktsn_port_hand_over_seconds"+ofInstance, "{{port}}")},
			{Title: "Link up", Unit: YesNo, Queries: one("ktsn_port_up"+ofInstance, "{{port}}")},
			{Title: "Not taken by the port, by reason", Unit: PerSecond, Queries: one(perPort("ktsn_port_refused_total"), "{{port}} {{reason}}")},
			{Title: "Worker spins", Unit: Share, Queries: one(perPort("ktsn_worker_spin_seconds_total"), "{{port}}")},
			{Title: "Worker wakes up", Unit: PerSecond, Queries: one(perPort("ktsn_worker_wake_ups_total"), "{{port}}")},
			{Title: "Threads do not answer", Explanation: "How long each thread of ktsnd has not answered.", Unit: Seconds,
				Queries: one("ktsn_thread_silent_seconds"+ofInstance, "{{thread}} {{device}}")},
		}},
		{"Receiving", []Panel{
			{Title: "Arrivals while the thread was awake", Unit: Share, Queries: one(perAttachment("ktsn_receive_hit_total")+" / "+
				perAttachment("ktsn_receive_expected_total"), "{{attachment}}")},
			{Title: "Granted for expected arrivals", Unit: Cores, Queries: one("ktsn_receive_granted_cpus"+ofAttachment, "{{attachment}}")},
			{Title: "By the ingress fast path", Unit: PerSecond, Queries: one(perAttachment("ktsn_ingress_frames_taken_total"), "{{attachment}}")},
			{Title: "Left to the kernel's path, by reason", Unit: PerSecond, Queries: perReason("ktsn_ingress_frames_left_total")},
		}},
		{"Node agent (Kubernetes)", []Panel{
			figure("Slots", "Of ktsn.io/tsn.", Number, 1e9, false, "sum(ktsn_slots"+ofInstance+")"),
			figure("Slots can be used", "", YesNo, 0, true, "min(ktsn_slots_healthy"+ofInstance+")"),
			figure("Parts not ready", "/readyz says why.", Number, 1, false, "sum(ktsn_agent_not_ready"+ofInstance+")"),
			figure("Conflicts", "Claims of other nodes that were refused.", Number, 1, false, "sum(ktsn_overlay_conflicts"+ofInstance+")"),
			figure("Containers without the library", "", Number, 1, false, "sum(ktsn_containers_without_library"+ofInstance+")"),
		}},
	}
}

// Columns of Grafana's grid, and the size of panels in it.
const (
	gridWidth   = 24
	graphWidth  = 12
	graphHeight = 8
	figureWidth = 4
	figureHigh  = 4
)

type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// JSON is the dashboard as Grafana imports it.
func JSON() ([]byte, error) {
	panels, y, id := []any{}, 0, 1
	for _, row := range Rows() {
		panels = append(panels, object{"type": "row", "id": id, "title": row.Title, "collapsed": false, "panels": []any{},
			"gridPos": object{"h": 1, "w": gridWidth, "x": 0, "y": y}})
		y, id = y+1, id+1
		x, height := 0, 0
		for _, panel := range row.Panels {
			width, high := graphWidth, graphHeight
			if panel.IsFigure {
				width, high = figureWidth, figureHigh
			}
			if x+width > gridWidth {
				x, y = 0, y+height
			}
			made := panel.object()
			made["id"], made["gridPos"] = id, object{"h": high, "w": width, "x": x, "y": y}
			panels = append(panels, made)
			x, height, id = x+width, high, id+1
		}
		y += height
	}
	text, err := json.MarshalIndent(object{
		"title": "KTSN", "uid": "ktsn", "tags": []string{"ktsn"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "10s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "", "annotations": object{"list": []any{}},
		"templating": object{"list": []any{
			object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("instance", "label_values(ktsn_up, instance)"),
			variable("attachment", `label_values(ktsn_clients`+ofInstance+`, attachment)`),
		}},
		"panels": panels,
	}, "", "  ")
	return append(text, '\n'), err
}

func variable(name, query string) object {
	return object{"name": name, "type": "query", "datasource": source, "query": object{"query": query, "refId": name}, "definition": query,
		"includeAll": true, "multi": true, "allValue": ".*", "refresh": 2, "sort": 1, "current": object{"text": "All", "value": "$__all"}}
}

func (p Panel) object() object {
	targets := []any{}
	for index, query := range p.Queries {
		target := object{"datasource": source, "expr": query.Expression, "legendFormat": query.Legend, "refId": string(rune('A' + index)),
			"range": !p.IsFigure, "instant": p.IsFigure}
		if p.Unit == HeatSecond {
			target["format"] = "heatmap"
		}
		targets = append(targets, target)
	}
	made := object{"title": p.Title, "description": p.Explanation, "datasource": source, "targets": targets}
	defaults := object{"unit": p.Unit, "min": 0}
	switch {
	case p.Unit == HeatSecond:
		made["type"] = "heatmap"
		made["options"] = object{"calculate": false, "yAxis": object{"unit": Seconds}}
		return made
	case p.IsFigure:
		made["type"] = "stat"
		made["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "colorMode": "background", "graphMode": "none"}
		defaults["color"] = object{"mode": "thresholds"}
		defaults["thresholds"] = object{"mode": "absolute", "steps": p.steps()}
	default:
		made["type"] = "timeseries"
		made["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}}
	}
	made["fieldConfig"] = object{"defaults": defaults, "overrides": []any{}}
	return made
}

// steps are the colours of a figure, from below to above.
func (p Panel) steps() []any {
	low, high, bound := "green", "red", p.Alarm
	if p.IsAlarmBelow {
		low, high, bound = "red", "green", p.Alarm+1
	}
	return []any{object{"color": low, "value": nil}, object{"color": high, "value": bound}}
}
