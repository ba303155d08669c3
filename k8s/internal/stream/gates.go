// SPDX-License-Identifier: Apache-2.0

// Package stream decides about Streams. It is pure: Streams, GateSchedules, Nodes, Pods and what the nodes' agents report come in,
// the Streams' next statuses go out. It also has the form of those reports.
//
// A hostile node may report anything: it is read within bounds and counts only for that node's own pods.
package stream

import (
	"slices"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// Classes of a port.
const Classes = 8

// Span of time, in ns, from Begin up to and without End.
type Span struct{ Begin, End int64 }

// Gates are the open stretches of a port's classes [802.1Q-2022 8.6.8.4].
type Gates struct {
	// Cycle in ns; 0: no gate ever changes.
	Cycle int64
	// Open stretches of each class, in order: they begin within [0, Cycle) of TAI modulo the cycle, and none meets the next. One that
	// goes over the cycle's end is one. Classes that are always open have none.
	Open [Classes][]Span
	// Always open, as bits.
	Always uint8
	// with has, for each class, the classes that are open while it is.
	with [Classes]uint8
}

// OpenGates is a port without a gate schedule.
func OpenGates() Gates { return constant(255) }

func constant(states uint8) Gates {
	gates := Gates{Always: states}
	for class := range Classes {
		if states>>class&1 == 1 {
			gates.with[class] = states
		}
	}
	return gates
}

// GatesOf a gate parameter table. The list's last states hold until the cycle's end, what lies beyond it is cut off.
func GatesOf(table v1alpha1.GateParameterTable) Gates {
	cycle := table.Cycle()
	if !table.GateEnabled || len(table.AdminControlList) == 0 || cycle <= 0 {
		states := uint8(255)
		if table.AdminGateStates != nil {
			states = uint8(*table.AdminGateStates)
		}
		return constant(states)
	}
	gates := Gates{Cycle: cycle}
	phase := table.AdminBaseTime % cycle
	var begin int64
	for index, entry := range table.AdminControlList {
		end := min(begin+entry.TimeIntervalValue, cycle)
		if index == len(table.AdminControlList)-1 {
			end = cycle
		}
		if end <= begin {
			break
		}
		states := uint8(entry.GateStatesValue)
		for class := range Classes {
			if states>>class&1 == 0 {
				continue
			}
			gates.with[class] |= states
			open := &gates.Open[class]
			if last := len(*open) - 1; last >= 0 && (*open)[last].End == begin {
				(*open)[last].End = end
			} else {
				*open = append(*open, Span{begin, end})
			}
		}
		begin = end
	}
	for class := range Classes {
		gates.turn(class, phase)
	}
	return gates
}

// turn joins what meets at the cycle's end, and counts from TAI's beginning instead of the base time.
func (g *Gates) turn(class int, phase int64) {
	open := g.Open[class]
	if last := len(open) - 1; last > 0 && open[0].Begin == 0 && open[last].End == g.Cycle {
		open[last].End += open[0].End
		open = open[1:]
	}
	if len(open) == 1 && open[0].End-open[0].Begin == g.Cycle {
		g.Always |= 1 << class
		g.Open[class] = nil
		return
	}
	turned := make([]Span, len(open))
	for index, span := range open {
		begin := (span.Begin + phase) % g.Cycle
		turned[index] = Span{begin, begin + span.End - span.Begin}
	}
	slices.SortFunc(turned, func(a, b Span) int { return int(min(max(a.Begin-b.Begin, -1), 1)) })
	g.Open[class] = turned
}

// IsAlways says whether a class's gate never closes.
func (g *Gates) IsAlways(class int) bool { return g.Always>>class&1 == 1 }

// IsNever says whether it never opens.
func (g *Gates) IsNever(class int) bool { return !g.IsAlways(class) && len(g.Open[class]) == 0 }

// Shares says whether two classes are open at the same time.
func (g *Gates) Shares(a, b int) bool { return a == b || g.with[a]>>b&1 == 1 }

// closed stretches of a class that has both, as Open.
func (g *Gates) closed(class int) []Span {
	open := g.Open[class]
	found := make([]Span, len(open))
	for index, span := range open {
		next := open[(index+1)%len(open)].Begin
		for next <= span.Begin {
			next += g.Cycle
		}
		found[index] = Span{span.End, next}
	}
	return found
}

// Covers says whether the gate of a class is open from `begin` to `end` of every interval. Intervals begin at multiples of
// `interval` in TAI; in the cycle they begin at every multiple of the greatest common divisor of the two. Where it is not, `at` is
// the offset in the cycle at which one such interval begins.
func (g *Gates) Covers(class int, interval, begin, end int64) (covers bool, at int64) {
	if g.IsAlways(class) {
		return true, 0
	}
	if g.IsNever(class) {
		return false, 0
	}
	step := gcd(interval, g.Cycle)
	for _, shut := range g.closed(class) {
		// Does any multiple of the step, as the interval's begin, have [begin, end) meet this stretch?
		first := floorDiv(shut.Begin-end, step) + 1
		if first*step < shut.End-begin {
			return false, ((first*step)%g.Cycle + g.Cycle) % g.Cycle
		}
	}
	return true, 0
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
