// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// random worlds are small, so that an ns-by-ns reference can look at all of them.
func randomTable(r *rand.Rand) v1alpha1.GateParameterTable {
	table := v1alpha1.GateParameterTable{GateEnabled: r.IntN(12) > 0, AdminBaseTime: int64(r.IntN(200))}
	for range r.IntN(5) {
		table.AdminControlList = append(table.AdminControlList, v1alpha1.GateControlEntry{
			GateStatesValue: int32(r.IntN(8)), TimeIntervalValue: int64(1 + r.IntN(40)),
		})
	}
	if r.IntN(3) == 0 {
		table.AdminCycleTime = int64(10 + r.IntN(100))
	}
	if r.IntN(3) == 0 {
		states := int32(r.IntN(8))
		table.AdminGateStates = &states
	}
	return table
}

// openAt is the reference: the states at an instant of TAI, by walking the list.
func openAt(table v1alpha1.GateParameterTable, class int, tai int64) bool {
	cycle := table.Cycle()
	states := int32(255)
	if table.AdminGateStates != nil {
		states = *table.AdminGateStates
	}
	if table.GateEnabled && len(table.AdminControlList) > 0 && cycle > 0 {
		at := ((tai-table.AdminBaseTime)%cycle + cycle) % cycle
		for _, entry := range table.AdminControlList {
			states = entry.GateStatesValue
			if at -= entry.TimeIntervalValue; at < 0 {
				break
			}
		}
	}
	return states>>class&1 == 1
}

func TestGatesAreThoseOfTheList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		table := randomTable(r)
		gates := GatesOf(table)
		for class := range 3 {
			for tai := int64(1000); tai < 1300; tai++ {
				open := gates.IsAlways(class)
				for _, span := range gates.Open[class] {
					at := tai % gates.Cycle
					open = open || at >= span.Begin && at < span.End || at+gates.Cycle >= span.Begin && at+gates.Cycle < span.End
				}
				if want := openAt(table, class, tai); open != want {
					t.Fatalf("%+v: class %d at %d: %v, expected %v: %+v", table, class, tai, open, want, gates)
				}
			}
			for other := range 3 {
				want := class == other
				for tai := int64(0); tai < 300; tai++ {
					want = want || openAt(table, class, tai) && openAt(table, other, tai)
				}
				if gates.Shares(class, other) != want {
					t.Fatalf("%+v: classes %d and %d: %v", table, class, other, !want)
				}
			}
		}
	}
}

func TestCoversIsWhatEveryIntervalFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	yes := 0
	for range 3000 {
		table := randomTable(r)
		gates := GatesOf(table)
		interval := int64(5 + r.IntN(60))
		begin := int64(r.IntN(int(interval)))
		end := begin + 1 + int64(r.IntN(30))
		want := true
		for n := int64(0); n < max(gates.Cycle, 1); n++ {
			for tai := n*interval + begin; tai < n*interval+end && want; tai++ {
				want = openAt(table, 0, tai)
			}
		}
		got, at := gates.Covers(0, interval, begin, end)
		if got != want {
			t.Fatalf("%+v, interval %d, %d to %d: %v", table, interval, begin, end, got)
		}
		if want {
			yes++
			continue
		}
		if gates.IsNever(0) {
			continue
		}
		// The offset that is named is one where it goes wrong.
		wrong := false
		for offset := begin; offset < end; offset++ {
			wrong = wrong || !openAt(table, 0, at+offset)
		}
		if !wrong {
			t.Fatalf("%+v, interval %d, %d to %d: nothing is wrong at %d", table, interval, begin, end, at)
		}
	}
	if yes < 100 {
		t.Errorf("only %d were covered: the worlds are too bad", yes)
	}
}

func TestMeetingsAreCounted(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		d := Demand{Interval: int64(1 + r.IntN(30)), Earliest: int64(r.IntN(10))}
		d.Latest = d.Earliest + int64(r.IntN(10))
		o := Demand{Interval: int64(1 + r.IntN(30)), Earliest: int64(r.IntN(10))}
		o.Latest = o.Earliest + int64(r.IntN(10))
		afterD, afterO := int64(r.IntN(20)), int64(r.IntN(20))
		most := int64(0)
		for n := int64(0); n < o.Interval; n++ {
			count := int64(0)
			for m := int64(-200); m < 1200; m++ {
				if n*d.Interval+d.Earliest <= m*o.Interval+o.Latest+afterO && m*o.Interval+o.Earliest <= n*d.Interval+d.Latest+afterD {
					count++
				}
			}
			most = max(most, count)
		}
		if got := meetings(&d, afterD, &o, afterO); got != most {
			t.Fatalf("%+v %d, %+v %d: %d, expected %d", d, afterD, o, afterO, got, most)
		}
	}
}

func randomDemand(r *rand.Rand, cycle int64) Demand {
	d := Demand{Class: r.IntN(3), Frames: int64(1 + r.IntN(2)), Frame: int64(1 + r.IntN(5)), TimeAware: r.IntN(2) == 0}
	base := max(cycle, 20)
	d.Interval = []int64{base, 2 * base, 3 * base, base / 2, base + 7}[r.IntN(5)]
	if d.TimeAware {
		d.Earliest = int64(r.IntN(int(d.Interval)))
		d.Latest = min(d.Earliest+int64(r.IntN(8)), d.Interval-1)
	}
	return d
}

// frame on its way through the reference.
type frame struct {
	stream          int
	due, since, end int64 // transmit time, what the latency counts from, last bit
}

// asked makes the transmit times of a stream within its bounds: bursts at any phase, or at any offset of the range.
func asked(r *rand.Rand, d *Demand, until int64) []int64 {
	var dues []int64
	phase := int64(r.IntN(int(d.Interval)))
	for n := int64(0); n*d.Interval < until; n++ {
		at := n*d.Interval + phase
		if d.TimeAware {
			at = n*d.Interval + d.Earliest + int64(r.IntN(int(d.Latest-d.Earliest)+1))
		}
		for range d.Frames {
			dues = append(dues, at)
		}
	}
	return dues
}

// run is ktsnd's time-aware transmission selection, ns by ns: the highest class whose head fits into the rest of its window, frames of
// a class by transmit time, a frame at a time; the hand-over lies before the wire.
func (p *Port) run(table v1alpha1.GateParameterTable, demands []Demand, frames []*frame, until int64) {
	slices.SortStableFunc(frames, func(a, b *frame) int { return int(a.due - b.due) })
	var busy int64
	for now := int64(0); now < until; now++ {
		if now+p.HandOver < busy {
			continue
		}
		for class := 2; class >= 0; class-- {
			index := slices.IndexFunc(frames, func(f *frame) bool { return f.end == 0 && demands[f.stream].Class == class })
			if index < 0 || frames[index].due > now {
				continue
			}
			need := p.HandOver + demands[frames[index].stream].Frame
			fits := true
			for at := now; at < now+need && fits; at++ {
				fits = openAt(table, class, at)
			}
			if fits {
				busy = max(now+p.HandOver, busy) + demands[frames[index].stream].Frame
				frames[index].end = busy
				break
			}
		}
	}
}

// Whatever accepted talkers do within their bounds, each frame has left within the latency that was promised, and a time-aware
// one finds its window.
func TestWhatIsAcceptedIsKept(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	accepted, timeAware, slack := 0, 0, 0
	for range 6000 {
		table := randomTable(r)
		p := Port{Gates: GatesOf(table), HandOver: int64(r.IntN(3)), LinkSpeed: 1e9}
		var demands []Demand
		var latency []int64
		for range 1 + r.IntN(4) {
			tried := append(slices.Clone(demands), randomDemand(r, p.Gates.Cycle))
			faults, found := p.Judge(tried, true)
			if !slices.ContainsFunc(faults, func(f *Fault) bool { return f != nil }) {
				demands, latency = tried, found
			}
		}
		if len(demands) == 0 {
			continue
		}
		accepted++
		until := 12 * max(p.Gates.Cycle, 40)
		var frames []*frame
		for index := range demands {
			d := &demands[index]
			if d.TimeAware {
				timeAware++
			}
			for _, due := range asked(r, d, until) {
				since := due
				if d.TimeAware {
					since = due / d.Interval * d.Interval
				}
				frames = append(frames, &frame{stream: index, due: due, since: since})
			}
		}
		p.run(table, demands, frames, 2*until)
		for _, f := range frames {
			if f.since > until {
				continue
			}
			took := f.end - f.since
			if f.end == 0 || took > latency[f.stream] {
				t.Fatalf("%+v\n%+v\nlatencies %v: frame of stream %d, due %d, left %d: took %d", table, demands, latency, f.stream, f.due, f.end, took)
			}
			if took == latency[f.stream] {
				slack++
			}
		}
	}
	if accepted < 1500 || timeAware < 300 || slack < 100 {
		t.Errorf("%d worlds with accepted streams, %d of them time-aware, %d frames at the bound: too few to say much", accepted, timeAware, slack)
	}
}

// A window of exactly the length that is asked for is taken, one of a nanosecond less is refused with the numbers.
func TestTheBoundIsExact(t *testing.T) {
	// 64 octets of payload on VXLAN at 1 Gbit/s: 92 + 50 + 14 + 24 octets.
	one := WireTime(WireOctets(92, 50), 1_000_000_000)
	if one != 180*8 {
		t.Fatalf("%d ns", one)
	}
	for _, c := range []struct {
		name   string
		demand Demand
		need   int64
	}{
		{"any time, one frame", Demand{Class: 6, Interval: 1_000_000, Frames: 1, Frame: one}, 10_000 + one},
		{"any time, eight frames", Demand{Class: 6, Interval: 1_000_000, Frames: 8, Frame: one}, 10_000 + 8*one},
		{"any time, twice a cycle", Demand{Class: 6, Interval: 500_000, Frames: 1, Frame: one}, 10_000 + 2*one},
		{"any time, every fourth cycle", Demand{Class: 6, Interval: 4_000_000, Frames: 4, Frame: one}, 10_000 + 4*one},
		{"at offset 0", Demand{Class: 6, Interval: 1_000_000, Frames: 2, Frame: one, TimeAware: true}, 10_000 + 2*one},
		{"at offsets up to 5 µs", Demand{Class: 6, Interval: 2_000_000, Frames: 1, Frame: one, TimeAware: true, Latest: 5000}, 15_000 + one},
	} {
		for _, less := range []int64{0, 1} {
			p := Port{LinkSpeed: 1_000_000_000, HandOver: 10_000, Gates: GatesOf(v1alpha1.GateParameterTable{
				GateEnabled: true, AdminControlList: []v1alpha1.GateControlEntry{
					{GateStatesValue: 64, TimeIntervalValue: c.need - less}, {GateStatesValue: 63, TimeIntervalValue: 1_000_000 - c.need + less},
				},
			})}
			faults, latency := p.Judge([]Demand{c.demand}, true)
			if (faults[0] == nil) != (less == 0) {
				t.Errorf("%s, %d ns less: %+v", c.name, less, faults[0])
			}
			if less == 0 && c.demand.TimeAware && latency[0] != c.need {
				t.Errorf("%s: latency %d", c.name, latency[0])
			}
			if less == 1 && faults[0].Code != CodeClassBandwidth {
				t.Errorf("%s: %+v", c.name, faults[0])
			}
		}
	}
}

func TestWithoutAScheduleTheLinkIsTheBound(t *testing.T) {
	p := Port{LinkSpeed: 100_000_000, Gates: OpenGates()}
	frame := WireTime(WireOctets(1500, 0), p.LinkSpeed)
	d := Demand{Interval: 1_000_000, Frames: 4, Frame: frame}
	if faults, latency := p.Judge([]Demand{d, d}, true); faults[0] != nil || faults[1] != nil || latency[0] != 8*frame {
		t.Errorf("%v, %v", faults, latency)
	}
	faults, _ := p.Judge([]Demand{d, d, d}, true)
	for _, fault := range faults {
		if fault == nil || fault.Code != CodeBandwidth {
			t.Errorf("%+v", fault)
		}
	}
	d.MaxLatency = 4*frame - 1
	if faults, _ := p.Judge([]Demand{d}, true); faults[0] == nil || faults[0].Code != CodeLatency {
		t.Errorf("%+v", faults[0])
	}
}

func TestNoSumOverflows(t *testing.T) {
	for _, d := range []Demand{
		{Interval: 10_000, Frames: 65535 * 4096, Frame: 1 << 40},
		{Interval: 10_000, Frames: 65535, Frame: 1 << 40, TimeAware: true, Latest: 9999},
	} {
		for _, table := range []v1alpha1.GateParameterTable{{}, {GateEnabled: true, AdminControlList: []v1alpha1.GateControlEntry{
			{GateStatesValue: 1, TimeIntervalValue: 5_000_000_000}, {GateStatesValue: 2, TimeIntervalValue: 5_000_000_000},
		}}} {
			p := Port{LinkSpeed: 1, HandOver: 10_000, Gates: GatesOf(table)}
			faults, latency := p.Judge(slices.Repeat([]Demand{d}, 300), true)
			for index, fault := range faults {
				if fault == nil || latency[index] < 0 {
					t.Fatalf("%+v: %v, %d", d, fault, latency[index])
				}
			}
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	p := Port{LinkSpeed: 1e9, HandOver: 10_000, Gates: OpenGates()}
	for _, count := range []int{10, 200} {
		var demands []Demand
		for index := range count {
			demands = append(demands, Demand{Class: index % 8, Interval: 1_000_000, Frames: 1, Frame: 800, TimeAware: index%2 == 0, Latest: int64(index * 100)})
		}
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			for b.Loop() {
				p.Judge(demands, true)
			}
		})
	}
}
