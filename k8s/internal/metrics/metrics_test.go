// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// encode writes counts as HdrHistogram does, three digits, from 1 ns.
func encode(counts ...int64) []byte {
	var body []byte
	for _, count := range counts {
		raw := uint64(count)<<1 ^ uint64(count>>63)
		for raw >= 0x80 {
			body = append(body, byte(raw)|0x80)
			raw >>= 7
		}
		body = append(body, byte(raw))
	}
	header := make([]byte, hdrHeader)
	binary.BigEndian.PutUint32(header, hdrCookie)
	binary.BigEndian.PutUint32(header[4:], uint32(len(body)))
	binary.BigEndian.PutUint32(header[12:], 3)
	binary.BigEndian.PutUint64(header[16:], 1)
	return append(header, body...)
}

func TestAHistogramIsRead(t *testing.T) {
	// Three digits: 2,048 values of 1 ns each, then 1,024 of 2 ns, then of 4 ns.
	found, err := decode(encode(-500, 3, -1499, 2, -1047, 1), []float64{500e-9, 1e-6, 2e-6, 4.1e-6, 5e-6})
	if err != nil {
		t.Fatal(err)
	}
	// 500 ns ×3; index 2000: 2,000 ns ×2; index 3048: 2048+1000 parts of 2 ns = 4,048 to 4,049 ns.
	want := map[float64]uint64{500e-9: 3, 1e-6: 3, 2e-6: 5, 4.1e-6: 6, 5e-6: 6}
	for bound, count := range want {
		if found.buckets[bound] != count {
			t.Errorf("up to %g s: %d, expected %d", bound, found.buckets[bound], count)
		}
	}
	if sum := 3*500e-9 + 2*2000e-9 + 4048.5e-9; found.count != 6 || found.sum < sum*0.9999 || found.sum > sum*1.0001 {
		t.Errorf("%d, %g", found.count, found.sum)
	}
	if empty, err := decode(nil, names.bounds); err != nil || empty.count != 0 || len(empty.buckets) != len(names.bounds) {
		t.Errorf("empty: %+v, %v", empty, err)
	}
}

func TestBadHistogramsAreRefused(t *testing.T) {
	good := encode(-500, 3)
	change := func(offset int, octets ...byte) []byte {
		data := append([]byte{}, good...)
		copy(data[offset:], octets)
		return data
	}
	for name, data := range map[string][]byte{
		"short": good[:20], "another cookie": change(0, 0), "longer than it is": change(7, 200),
		"cut off": append(change(7, 4), 0x80), "no digits": change(15, 0), "many digits": change(15, 9), "lowest 0": change(16, make([]byte, 8)...),
		"endless": encode(-indexMax, -1), "beyond": encode(-indexMax - 1),
	} {
		if found, err := decode(data, names.bounds); err == nil {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(-500, 3, -1499, 2))
	f.Add(encode(1<<62, -3, 7))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = decode(data, names.bounds) })
}

// daemon answers with what it holds.
type daemon struct {
	nodeapi.NodeClient
	down  bool
	stuck bool
}

func (d daemon) Health(context.Context, *nodeapi.HealthRequest, ...grpc.CallOption) (*nodeapi.HealthReply, error) {
	if d.down {
		return nil, errors.New("ktsnd is not running")
	}
	if d.stuck {
		return &nodeapi.HealthReply{
			Threads: []*nodeapi.ThreadState{{Name: "ktsn-worker", Device: "eth0", SilentNs: 2_500_000_000, IsStuck: true}},
			Clock:   &nodeapi.ClockState{Source: "kernel", Transitions: 3, Steps: 1, Holding: []string{"eth0"}},
		}, nil
	}
	return &nodeapi.HealthReply{Serving: true, ClockSynchronised: true, TaiOffsetSeconds: 37, Warnings: []string{"w"}}, nil
}

func (daemon) List(context.Context, *nodeapi.ListRequest, ...grpc.CallOption) (*nodeapi.ListReply, error) {
	return &nodeapi.ListReply{
		Ports: []*nodeapi.Port{{Device: "eth0", Up: true, LinkSpeed: 1e9}, {Device: "eth0", Netns: "/run/netns/x"}},
		Attachments: []*nodeapi.AttachmentState{
			{Name: "c1/net1", Clients: []*nodeapi.Client{{Pid: 7}}},
		},
	}, nil
}

func (daemon) Statistics(context.Context, *nodeapi.StatisticsRequest, ...grpc.CallOption) (*nodeapi.StatisticsReply, error) {
	return &nodeapi.StatisticsReply{
		Attachments: []*nodeapi.AttachmentStatistics{{
			Name: "c1/net1", Taken: 11, Sent: 10, SentOctets: 640, Late: 1, Overrun: 2, Waited: 3, RingFull: 4,
			Dropped: map[string]uint64{"missed": 1}, Bypassed: map[string]uint64{"no_txtime": 4},
			ClientsRefused: map[string]uint64{"clients_max": 1},
			TransmitError:  &nodeapi.Histogram{HdrV2: encode(-700, 10), Count: 10},
			CaptureLag:     &nodeapi.Histogram{HdrV2: encode(-900, 2), Count: 2},
			Ingress:        &nodeapi.IngressStatistics{Taken: 5, Left: map[string]uint64{"fragment": 1}},
			Receive: &nodeapi.ReceiveStatistics{
				Counts:    &nodeapi.ReceiveCounts{Expected: 100, Hit: 90, Early: 7, Missed: 3, SpunNs: 2_500_000_000},
				Processes: 2, GrantedPermille: 150,
			},
			Deferred: 6, DeferredFailed: 2, Deferral: &nodeapi.Deferral{ForNs: 61_000_000_000, LongestHandOverNs: 512_000},
		}},
		Workers: []*nodeapi.WorkerStatistics{{Uplink: "eth0", WakeUps: 9, SpinNs: 1_500_000_000}},
		Ports: []*nodeapi.PortStatistics{
			{Device: "eth0", Frames: []uint64{0, 3}, TransmissionOverrun: []uint64{0, 1}, HandOverNs: 5000,
				Refused: map[string]uint64{"no_buffer": 4}, Retried: 3},
			{Device: "eth0", Netns: "/run/netns/x", Frames: []uint64{1}},
		},
	}, nil
}

const scraped = `
# HELP ktsn_clock_tai_offset_seconds TAI less UTC as the kernel has it; 0 is wrong.
# TYPE ktsn_clock_tai_offset_seconds gauge
ktsn_clock_tai_offset_seconds 37
# HELP ktsn_deferred_hand_over_seconds Longest hand-over of the last minute, while frames are deferred.
# TYPE ktsn_deferred_hand_over_seconds gauge
ktsn_deferred_hand_over_seconds{attachment="c1/net1"} 0.000512
# HELP ktsn_deferred_seconds How long frames have left by a thread that is not real-time; 0 = they leave by the worker.
# TYPE ktsn_deferred_seconds gauge
ktsn_deferred_seconds{attachment="c1/net1"} 61
# HELP ktsn_frames_deferred_failed_total Of the frames sent, those that the device did not take from that thread.
# TYPE ktsn_frames_deferred_failed_total counter
ktsn_frames_deferred_failed_total{attachment="c1/net1"} 2
# HELP ktsn_frames_deferred_total Of the frames sent, those that left by a thread that is not real-time.
# TYPE ktsn_frames_deferred_total counter
ktsn_frames_deferred_total{attachment="c1/net1"} 6
# HELP ktsn_frames_dropped_total Frames dropped, by reason.
# TYPE ktsn_frames_dropped_total counter
ktsn_frames_dropped_total{attachment="c1/net1",reason="missed"} 1
# HELP ktsn_frames_waited_total Frames that the program sent after their transmit time, as it had waited for a slot of its ring.
# TYPE ktsn_frames_waited_total counter
ktsn_frames_waited_total{attachment="c1/net1"} 3
# HELP ktsn_port_frames_total Frames handed over, by traffic class.
# TYPE ktsn_port_frames_total counter
ktsn_port_frames_total{class="0",port="eth0"} 0
ktsn_port_frames_total{class="1",port="eth0"} 3
# HELP ktsn_port_refused_total Times that the port did not take a frame, by reason.
# TYPE ktsn_port_refused_total counter
ktsn_port_refused_total{port="eth0",reason="no_buffer"} 4
# HELP ktsn_sends_ring_full_total Sends that failed with EAGAIN as their socket had no slot left in its ring.
# TYPE ktsn_sends_ring_full_total counter
ktsn_sends_ring_full_total{attachment="c1/net1"} 4
# HELP ktsn_slots Slots of ktsn.io/tsn that this node offers.
# TYPE ktsn_slots gauge
ktsn_slots 8
# HELP ktsn_up 1: ktsnd answers.
# TYPE ktsn_up gauge
ktsn_up 1
# HELP ktsn_receive_granted_cpus CPUs that these processes together may spin.
# TYPE ktsn_receive_granted_cpus gauge
ktsn_receive_granted_cpus{attachment="c1/net1"} 0.15
# HELP ktsn_receive_hit_total Expected arrivals that came while the thread was awake for them.
# TYPE ktsn_receive_hit_total counter
ktsn_receive_hit_total{attachment="c1/net1"} 90
# HELP ktsn_receive_missed_total Expected arrivals that did not come in their window.
# TYPE ktsn_receive_missed_total counter
ktsn_receive_missed_total{attachment="c1/net1"} 3
# HELP ktsn_receive_spun_seconds_total Time that threads spun for expected arrivals.
# TYPE ktsn_receive_spun_seconds_total counter
ktsn_receive_spun_seconds_total{attachment="c1/net1"} 2.5
# HELP ktsn_worker_spin_seconds_total Time that the worker spent spinning.
# TYPE ktsn_worker_spin_seconds_total counter
ktsn_worker_spin_seconds_total{port="eth0"} 1.5
`

func TestWhatIsScraped(t *testing.T) {
	agent := func() Agent {
		return Agent{Capacity: 8, Healthy: true, Faults: map[string]string{"overlay": "no prefix"}}
	}
	collector := New(daemon{}, agent)
	err := testutil.CollectAndCompare(collector, strings.NewReader(scraped), "ktsn_clock_tai_offset_seconds",
		"ktsn_deferred_hand_over_seconds", "ktsn_deferred_seconds", "ktsn_frames_deferred_failed_total", "ktsn_frames_deferred_total",
		"ktsn_frames_dropped_total", "ktsn_frames_waited_total", "ktsn_port_frames_total", "ktsn_port_refused_total",
		"ktsn_receive_granted_cpus", "ktsn_receive_hit_total", "ktsn_receive_missed_total", "ktsn_receive_spun_seconds_total",
		"ktsn_sends_ring_full_total", "ktsn_slots", "ktsn_up", "ktsn_worker_spin_seconds_total")
	if err != nil {
		t.Error(err)
	}
	// Names and units as Prometheus wants them, and a registry that takes them all.
	problems, err := testutil.CollectAndLint(collector)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if err := prometheus.NewPedanticRegistry().Register(collector); err != nil {
		t.Error(err)
	}
}

func TestWithoutADaemonTheAgentIsShown(t *testing.T) {
	collector := New(daemon{down: true}, func() Agent { return Agent{Capacity: 8} })
	want := "# HELP ktsn_up 1: ktsnd answers.\n# TYPE ktsn_up gauge\nktsn_up 0\n"
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want), "ktsn_up"); err != nil {
		t.Error(err)
	}
	if count := testutil.CollectAndCount(collector); count != 7 {
		t.Errorf("%d metrics", count)
	}
}

func TestAStuckThreadIsShown(t *testing.T) {
	collector := New(daemon{stuck: true}, func() Agent { return Agent{} })
	want := `
# HELP ktsn_clock_good 1: the clock is good, as the ports' unsynchronised sees it.
# TYPE ktsn_clock_good gauge
ktsn_clock_good{source="kernel"} 0
# HELP ktsn_clock_held_ports Ports with frames that wait for the clock, or are dropped, now.
# TYPE ktsn_clock_held_ports gauge
ktsn_clock_held_ports 1
# HELP ktsn_frames_dropped_total Frames dropped, by reason.
# TYPE ktsn_frames_dropped_total counter
ktsn_frames_dropped_total{attachment="c1/net1",reason="missed"} 1
# HELP ktsn_healthy 1: ktsnd answers, takes frames, and none of its threads is stuck.
# TYPE ktsn_healthy gauge
ktsn_healthy 0
# HELP ktsn_thread_silent_seconds How long this thread of ktsnd has not answered; 0 = it has.
# TYPE ktsn_thread_silent_seconds gauge
ktsn_thread_silent_seconds{device="eth0",thread="ktsn-worker"} 2.5
# HELP ktsn_thread_stuck 1: this thread of ktsnd is stuck.
# TYPE ktsn_thread_stuck gauge
ktsn_thread_stuck{device="eth0",thread="ktsn-worker"} 1
# HELP ktsn_up 1: ktsnd answers.
# TYPE ktsn_up gauge
ktsn_up 1
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want), "ktsn_clock_good", "ktsn_clock_held_ports",
		"ktsn_frames_dropped_total", "ktsn_healthy", "ktsn_thread_silent_seconds", "ktsn_thread_stuck", "ktsn_up"); err != nil {
		t.Error(err)
	}
}

// counted is a ktsnd that counts how often it is asked.
type counted struct {
	nodeapi.NodeClient
	asked atomic.Int32
}

func (c *counted) Health(context.Context, *nodeapi.HealthRequest, ...grpc.CallOption) (*nodeapi.HealthReply, error) {
	c.asked.Add(1)
	return &nodeapi.HealthReply{Serving: true}, nil
}

func (c *counted) List(context.Context, *nodeapi.ListRequest, ...grpc.CallOption) (*nodeapi.ListReply, error) {
	return &nodeapi.ListReply{}, nil
}

func (c *counted) Statistics(context.Context, *nodeapi.StatisticsRequest, ...grpc.CallOption) (*nodeapi.StatisticsReply, error) {
	return &nodeapi.StatisticsReply{}, nil
}

// However many scrape at once, ktsnd is asked once a second.
func TestKtsndIsAskedOnceASecond(t *testing.T) {
	daemon := &counted{}
	collector := New(daemon, func() Agent { return Agent{} })
	now := time.Now()
	collector.now = func() time.Time { return now }
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	scrape := func() {
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				found, err := registry.Gather()
				isUp := false
				for _, family := range found {
					isUp = isUp || family.GetName() == "ktsn_up"
				}
				if err != nil || !isUp {
					t.Errorf("%v", err)
				}
			})
		}
		group.Wait()
	}
	scrape()
	now = now.Add(keptFor - 1)
	scrape()
	if asked := daemon.asked.Load(); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	now = now.Add(1)
	scrape()
	if asked := daemon.asked.Load(); asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}
