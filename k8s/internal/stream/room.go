// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Codes of 802.1Q-2022 table 46-15 (TSN failure codes) that a node's part can have.
const (
	CodeBandwidth      = 1  // insufficient bandwidth
	CodeResources      = 2  // insufficient bridge resources
	CodeClassBandwidth = 3  // insufficient bandwidth for traffic class
	CodeDestination    = 5  // stream destination address already in use
	CodePreempted      = 6  // stream pre-empted by higher rank
	CodeFrameSize      = 14 // max frame size is too large for media
	CodeLatency        = 21 // max latency exceeded
)

// Fault is why a stream is refused on a node.
type Fault struct {
	Reason  string
	Code    int32 // 0: the table has none
	Message string
}

// Port as the frames see it.
type Port struct {
	Gates     Gates
	LinkSpeed int64 // bit/s
	// HandOver before the first frame of a window is on the wire: guard band.
	HandOver int64
}

// Demand is what one node's talkers of a stream ask of a port. Spans in ns.
type Demand struct {
	Class    int
	Interval int64
	Frames   int64 // each interval, of all talkers
	Frame    int64 // one frame's time on the wire, with preamble and gap
	// TimeAware: the first frame's offset lies between Earliest and Latest of an interval that begins at a multiple of TAI.
	TimeAware        bool
	Earliest, Latest int64
	MaxLatency       int64 // 0: none
}

// endless stands for what no sum may reach.
const endless = math.MaxInt64 / 4

// times and plus do not overflow: what is too much stays too much.
func times(a, b int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high != 0 || low > endless {
		return endless
	}
	return int64(low)
}

func plus(a, b int64) int64 { return min(a+b, endless) }

// WireTime of so many octets at a speed, rounded up.
func WireTime(octets, speed int64) int64 { return ceilDiv(times(octets, 8_000_000_000), max(speed, 1)) }

// WireOctets of an IP packet: MAC header, what the overlay adds, padding, FCS, preamble and gap.
func WireOctets(packet, overhead int64) int64 { return max(packet+overhead+14, 60) + 24 }

func (d *Demand) burst() int64 { return times(d.Frames, d.Frame) }

// within is the most that can be asked for in any span, its end included.
func (d *Demand) within(span int64) int64 {
	return times(plus(span, d.Latest-d.Earliest)/d.Interval+1, d.burst())
}

// each is the most that can be asked for in any span, its end left out.
func (d *Demand) each(span int64) int64 {
	return times(ceilDiv(plus(span, d.Latest-d.Earliest), d.Interval), d.burst())
}

// Judge looks at all demands of a port together. `faults` says for each what is wrong (nil: nothing), `latency` how long its
// frames take up to the wire at worst: since their transmit time, or, time-aware, since the interval's begin. Unless `asks` is set,
// it is computed only for streams with a bound.
func (p *Port) Judge(demands []Demand, asks bool) (faults []*Fault, latency []int64) {
	faults, latency = make([]*Fault, len(demands)), make([]int64, len(demands))
	overload := p.link(demands)
	offsets := p.offsets(demands)
	for index := range demands {
		d := &demands[index]
		switch {
		case overload != nil:
			faults[index] = overload
		case d.TimeAware:
			latency[index] = plus(d.Latest, offsets[index])
			faults[index] = p.timeAware(d, offsets[index])
		default:
			faults[index], latency[index] = p.anyTime(d, demands, asks || d.MaxLatency > 0)
		}
		if faults[index] == nil && d.MaxLatency > 0 && latency[index] > d.MaxLatency {
			faults[index] = &Fault{"MaxLatency", CodeLatency, fmt.Sprintf(
				"max-latency: found %d ns, but a frame takes up to %s before it has left the node", d.MaxLatency, nanoseconds(latency[index]))}
		}
	}
	return faults, latency
}

func nanoseconds(span int64) string {
	if span >= endless {
		return "no bounded time"
	}
	return fmt.Sprintf("%d ns", span)
}

// link: all streams of the port together, in ns of link time each second.
func (p *Port) link(demands []Demand) *Fault {
	const second = 1_000_000_000
	var sum int64
	for index := range demands {
		d := &demands[index]
		high, low := bits.Mul64(uint64(d.burst()), second)
		share := uint64(endless)
		if high < uint64(d.Interval) {
			share, _ = bits.Div64(high, low, uint64(d.Interval))
			share++
		}
		sum = plus(sum, int64(min(share, endless)))
	}
	if sum <= second {
		return nil
	}
	return &Fault{"LinkSpeed", CodeBandwidth, fmt.Sprintf(
		"the streams of this port would take %.1f %% of its %d bit/s", float64(sum)/second*100, p.LinkSpeed)}
}

// offsets: for each time-aware demand, how long after its latest transmit offset its last frame has left: hand-over, its own
// burst, and all that can be asked for around the same time by those that share its windows.
func (p *Port) offsets(demands []Demand) []int64 {
	after := make([]int64, len(demands))
	for index := range demands {
		d := &demands[index]
		switch {
		case d.TimeAware && p.Gates.IsAlways(d.Class):
			after[index] = p.busy(p.together(d.Class, demands))
		default:
			after[index] = plus(p.HandOver, d.burst())
		}
	}
	// What overlaps grows with what was found so far; what does not come to an end soon has none.
	for pass := 0; p.widen(demands, after, pass >= passesMax); pass++ {
	}
	return after
}

// passesMax bounds what one look at many streams costs.
const passesMax = 64

// widen looks at each time-aware demand once; true: something grew.
func (p *Port) widen(demands []Demand, after []int64, isLast bool) (grew bool) {
	for index := range demands {
		d := &demands[index]
		if !d.TimeAware || p.Gates.IsAlways(d.Class) {
			continue
		}
		sum := p.HandOver
		for other := range demands {
			r := &demands[other]
			switch {
			case !p.Gates.Shares(d.Class, r.Class):
			case r.TimeAware:
				sum = plus(sum, times(meetings(d, after[index], r, after[other]), r.burst()))
			default:
				sum = plus(sum, r.within(plus(p.Gates.left(), d.Latest-d.Earliest+after[index])))
			}
		}
		if sum <= after[index] {
			continue
		}
		if isLast || sum > 4*max(d.Interval, p.Gates.Cycle) {
			sum = endless
		}
		after[index], grew = sum, true
	}
	return grew
}

// left bounds how long ago anything was asked for that still waits: the windows of each cycle have room for what came in the one
// before.
func (g *Gates) left() int64 { return 2 * g.Cycle }

// together are the demands that can be in front of a frame of a class.
func (p *Port) together(class int, demands []Demand) []Demand {
	var found []Demand
	for index := range demands {
		if p.Gates.Shares(class, demands[index].Class) {
			found = append(found, demands[index])
		}
	}
	return found
}

// meetings counts how many of r's intervals can have frames on their way while one interval of d has. With intervals at multiples
// of TAI, the distance of their begins is any multiple of the greatest common divisor.
func meetings(d *Demand, afterD int64, r *Demand, afterR int64) int64 {
	step := gcd(d.Interval, r.Interval)
	from := ceilDiv(d.Earliest-min(r.Latest+afterR, endless), step)
	to := floorDiv(min(d.Latest+afterD, endless)-r.Earliest, step)
	if to < from {
		return 0
	}
	return (to-from)*step/r.Interval + 1
}

// timeAware: the gate is open from the earliest offset until the last frame has left, in each interval.
func (p *Port) timeAware(d *Demand, after int64) *Fault {
	end := plus(d.Latest, after)
	if p.Gates.IsAlways(d.Class) && after < endless {
		return nil
	}
	if p.Gates.IsNever(d.Class) {
		return p.never(d)
	}
	covers, at := false, int64(0)
	if after < endless {
		covers, at = p.Gates.Covers(d.Class, d.Interval, d.Earliest, end)
	}
	if covers {
		return nil
	}
	return &Fault{"Window", CodeClassBandwidth, fmt.Sprintf(
		"time-aware: the gate of traffic class %d has to be open from %d to %d ns of each interval (offsets %d to %d, then %s for the frames of "+
			"all streams there); it is open %s of its cycle of %d ns, in which an interval begins at %d",
		d.Class, d.Earliest, end, d.Earliest, d.Latest, nanoseconds(after), p.Gates.text(d.Class), p.Gates.Cycle, at)}
}

func (p *Port) never(d *Demand) *Fault {
	return &Fault{"Window", CodeClassBandwidth, fmt.Sprintf("the gate of traffic class %d never opens", d.Class)}
}

// text of the windows, at most four.
func (g *Gates) text(class int) string {
	text := ""
	for index, span := range g.Open[class] {
		if index == 4 {
			return text + fmt.Sprintf(" and %d more", len(g.Open[class])-4)
		}
		if index > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d to %d", span.Begin, span.End)
	}
	return text
}

// anyTime: the windows of one cycle have room for all that can be asked for in a cycle.
func (p *Port) anyTime(d *Demand, demands []Demand, asks bool) (*Fault, int64) {
	if p.Gates.IsNever(d.Class) {
		return p.never(d), 0
	}
	together := p.together(d.Class, demands)
	if p.Gates.IsAlways(d.Class) {
		if !asks {
			return nil, 0
		}
		return nil, p.busy(together)
	}
	windows := p.windows(d.Class, together)
	var demand int64
	for index := range together {
		demand = plus(demand, together[index].each(p.Gates.Cycle))
	}
	if demand > windows.room {
		return &Fault{"Window", CodeClassBandwidth, fmt.Sprintf(
			"the windows of traffic class %d hold %d ns of frames each cycle of %d ns (open %s, each less %d ns hand-over and what the longest frame, "+
				"%d ns, may leave empty); this and the accepted streams that share them ask for up to %s",
			d.Class, windows.room, p.Gates.Cycle, p.Gates.text(d.Class), p.HandOver, windows.longest, nanoseconds(demand))}, 0
	}
	if !asks {
		return nil, 0
	}
	return nil, windows.wait(d, together)
}

// windows of a class, and what each is sure to hold: a frame that does not fit into a window's rest leaves the rest empty.
type windows struct {
	open     []Span
	cycle    int64
	handOver int64
	longest  int64
	holds    []int64
	room     int64
	// ahead: for each of together, how long ago it may have been asked for what is still in front of this class: where the windows are
	// others, it waited while these were open.
	ahead []int64
}

func (p *Port) windows(class int, together []Demand) windows {
	w := windows{open: p.Gates.Open[class], cycle: p.Gates.Cycle, handOver: p.HandOver}
	shortest := int64(endless)
	for index := range together {
		w.longest, shortest = max(w.longest, together[index].Frame), min(shortest, together[index].Frame)
		if slices.Equal(p.Gates.Open[together[index].Class], w.open) {
			w.ahead = append(w.ahead, 0)
		} else {
			w.ahead = append(w.ahead, p.Gates.left())
		}
	}
	for _, span := range w.open {
		holds := max(span.End-span.Begin-p.HandOver, 0)
		if w.longest == shortest {
			holds = holds / w.longest * w.longest
		} else {
			holds = max(holds-(w.longest-1), 0)
		}
		w.holds = append(w.holds, holds)
		w.room += holds
	}
	return w
}

// candidatesMax bounds how many instants wait looks at.
const candidatesMax = 1024

// wait at worst: all is asked for at once when a window's rest has just become too short; a frame that is asked for `later` after
// that finds whatever came until then before it. As the windows of a cycle hold what comes in a cycle, no frame of later cycles
// waits longer.
func (w *windows) wait(d *Demand, together []Demand) int64 {
	count := int64(0)
	for index := range together {
		count += w.cycle/together[index].Interval + 1
	}
	if count > candidatesMax {
		return w.after(d, together, w.cycle)
	}
	worst := int64(0)
	for index := range together {
		r := &together[index]
		for later := int64(0); later < w.cycle; later += r.Interval {
			at := max(later-(r.Latest-r.Earliest), 0)
			worst = max(worst, w.after(d, together, at)-at)
		}
	}
	return min(worst, endless)
}

// after: from the instant at which all was asked for until a frame of `later` has left.
func (w *windows) after(d *Demand, together []Demand, later int64) int64 {
	span := later
	for range passesMax {
		var before int64
		for index := range together {
			r := &together[index]
			if r.Class == d.Class {
				before = plus(before, r.within(later))
			} else {
				// A higher class goes first until the frame has left; one of a lower class may be on the wire.
				before = plus(before, r.within(plus(span, w.ahead[index])))
			}
		}
		found := w.missed(before)
		if found <= span {
			return found
		}
		if span = found; span >= endless {
			break
		}
	}
	return endless
}

// missed: from the instant at which a window's rest is just too short until `before` ns of frames have left, for the worst window.
func (w *windows) missed(before int64) int64 {
	if w.room == 0 {
		return endless
	}
	worst := int64(0)
	for index, span := range w.open {
		now := max(span.Begin, span.End-w.handOver-w.longest+1)
		turns := (before - 1) / w.room
		left := before - turns*w.room
		for next := index + 1; left > 0; next++ {
			at := next % len(w.open)
			window := w.open[at]
			if left <= w.holds[at] {
				begin := window.Begin + (int64(next/len(w.open))+turns)*w.cycle
				worst = max(worst, begin+w.handOver+left-now)
			}
			left -= w.holds[at]
		}
	}
	return min(worst, endless)
}

// busy is how long the link can be without a pause, at worst, for a class whose gate never closes. What was asked for while the gates of
// others were closed may come at once.
func (p *Port) busy(together []Demand) int64 {
	span := int64(0)
	for range 1000 {
		var sum int64
		for index := range together {
			d := &together[index]
			if p.Gates.IsAlways(d.Class) {
				sum = plus(sum, d.each(max(span, 1)))
			} else {
				sum = plus(sum, d.within(plus(p.Gates.left(), span)))
			}
		}
		if sum <= span {
			return plus(p.HandOver, sum)
		}
		if span = sum; span >= endless {
			break
		}
	}
	return endless
}
