// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"sort"
	"strings"
	"sync"
)

// parts holds the state of each part of the agent, for /readyz, the metrics and node.json.
type parts struct {
	mutex  sync.Mutex
	faults map[string]error
}

// newParts makes parts that have not started.
func newParts(names ...string) *parts {
	p := &parts{faults: map[string]error{}}
	for _, name := range names {
		p.faults[name] = errors.New("not started yet")
	}
	return p
}

// set stores a part's state. It returns true when the state has changed.
func (p *parts) set(name string, err error) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	before := p.faults[name]
	if err == nil {
		delete(p.faults, name)
		return before != nil
	}
	p.faults[name] = err
	return before == nil || before.Error() != err.Error()
}

// get returns a part's state; nil: it works.
func (p *parts) get(name string) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.faults[name]
}

// texts returns the faults by part.
func (p *parts) texts() map[string]string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	texts := map[string]string{}
	for name, err := range p.faults {
		texts[name] = err.Error()
	}
	return texts
}

// String lists the faults, one a line; empty: ready.
func (p *parts) String() string {
	var lines []string
	for name, text := range p.texts() {
		lines = append(lines, name+": "+strings.ReplaceAll(text, "\n", "; "))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
