// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"ktsn.io/ktsn/k8s/internal/overlaynet"
	"ktsn.io/ktsn/k8s/internal/rollout"
	"ktsn.io/ktsn/k8s/internal/stream"
)

// nodeFacts are what a Node's annotations say, read once: a look at 2,000 Nodes would read as many reports, most of them unchanged.
// What it returns is shared and must not be changed.
type nodeFacts struct {
	mutex sync.Mutex
	known map[string]nodeFact
}

type nodeFact struct {
	prefixesText, reportText, answersText string

	prefixes []netip.Prefix
	report   stream.Report
	answers  rollout.Answers
}

func (f *nodeFacts) of(node *corev1.Node) nodeFact {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	fact, has := f.known[node.Name]
	if text := node.Annotations[overlaynet.AnnotationPrefixes]; !has || text != fact.prefixesText {
		fact.prefixesText = text
		fact.prefixes, _ = overlaynet.ParsePrefixes("", text) // its agent says what is wrong
	}
	if text := node.Annotations[stream.Annotation]; !has || text != fact.reportText {
		fact.reportText, fact.report = text, stream.ParseReport(text)
	}
	if text := node.Annotations[rollout.Annotation]; !has || text != fact.answersText {
		fact.answersText, fact.answers = text, rollout.ParseAnswers(text)
	}
	if f.known == nil {
		f.known = map[string]nodeFact{}
	}
	f.known[node.Name] = fact
	return fact
}

// forget what is known of Nodes that are gone.
func (f *nodeFacts) forget(nodes []*corev1.Node) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if len(f.known) <= len(nodes) {
		return
	}
	there := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		there[node.Name] = true
	}
	maps.DeleteFunc(f.known, func(name string, _ nodeFact) bool { return !there[name] })
}
