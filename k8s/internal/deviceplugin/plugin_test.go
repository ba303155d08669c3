// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"ktsn.io/ktsn/k8s/internal/eventually"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

func TestDevicesAreToldAndFollowTheirHealth(t *testing.T) {
	folder := folderFor(t)
	k := startKubelet(t, folder)
	plugin, _ := startPlugin(t, folder, nil)
	k.wantDevices(t, 0, "")
	if request := k.registered[0]; request.ResourceName != "ktsn.io/tsn" || request.Version != "v1beta1" ||
		request.Endpoint != "ktsn.io-tsn.sock" {
		t.Errorf("registered as %v", request)
	}
	eventually.Holds(t, "registered", func() bool { return plugin.Registered() == nil })
	plugin.SetDevices(3, true)
	k.wantDevices(t, 3, api.Healthy)
	plugin.SetDevices(3, false)
	k.wantDevices(t, 3, api.Unhealthy)
	plugin.SetDevices(5, true)
	k.wantDevices(t, 5, api.Healthy)
	plugin.SetDevices(DevicesMax+10, true)
	k.wantDevices(t, DevicesMax, api.Healthy)
}

func TestAKubeletThatRestartsIsToldAgain(t *testing.T) {
	folder := folderFor(t)
	k := startKubelet(t, folder)
	plugin, _ := startPlugin(t, folder, nil)
	plugin.SetDevices(2, true)
	k.wantDevices(t, 2, api.Healthy)
	for life := 2; life <= 4; life++ {
		k.stop()
		eventually.Holds(t, "told as missing", func() bool { return plugin.Registered() != nil })
		k.start(t)
		k.wantDevices(t, 2, api.Healthy)
		if k.count() != life {
			t.Fatalf("registered %d times, in life %d of the kubelet", k.count(), life)
		}
	}
}

// The kubelet was killed and started so quickly that the plugin missed the moment without a socket.
func TestAKubeletsNewSocketIsSeen(t *testing.T) {
	folder := folderFor(t)
	k := startKubelet(t, folder)
	plugin, _ := startPlugin(t, folder, nil)
	plugin.SetDevices(1, true)
	k.wantDevices(t, 1, api.Healthy)
	if err := os.Remove(filepath.Join(folder, "ktsn.io-tsn.sock")); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "registered again", func() bool { return k.count() == 2 })
	k.wantDevices(t, 1, api.Healthy)
}

func TestTheKubeletMayComeLaterOrRefuse(t *testing.T) {
	folder := folderFor(t)
	plugin, _ := startPlugin(t, filepath.Join(folder, "device-plugins"), nil)
	plugin.SetDevices(1, true)
	eventually.Holds(t, "the log names the missing folder", func() bool {
		err := plugin.Registered()
		return err != nil && strings.Contains(err.Error(), "is the kubelet running")
	})
	if err := os.Mkdir(filepath.Join(folder, "device-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the log names the missing socket", func() bool {
		return strings.Contains(plugin.Registered().Error(), "kubelet's socket")
	})
	k := &kubelet{folder: filepath.Join(folder, "device-plugins"), lists: make(chan []*api.Device, 64), refuse: errRefused}
	k.start(t)
	t.Cleanup(k.stop)
	eventually.Holds(t, "the log has the refusal", func() bool {
		return strings.Contains(plugin.Registered().Error(), errRefused.Error())
	})
	k.mutex.Lock()
	k.refuse = nil
	k.mutex.Unlock()
	k.wantDevices(t, 1, api.Healthy)
}

func TestAllocateNamesWhatAContainerNeeds(t *testing.T) {
	folder := folderFor(t)
	k := startKubelet(t, folder)
	plugin, lib := startPlugin(t, folder, func(c *Config) { c.ClientPolicy, c.ClientReceive = "strict", "expect" })
	plugin.SetDevices(4, true)
	k.wantDevices(t, 4, api.Healthy)
	answer, err := k.plugin.Allocate(context.Background(), &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{
			{DevicesIds: []string{"tsn-3", "tsn-0"}}, {DevicesIds: []string{"tsn-1"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.ContainerResponses) != 2 || len(lib.asked) != 2 || lib.asked[0][0] != "tsn-3" {
		t.Fatalf("%v, asked for %v", answer, lib.asked)
	}
	want := map[string]string{
		"/run/ktsn/client":         "/run/ktsn/client",
		"/usr/lib/ktsn/libktsn.so": "/var/lib/ktsn/lib/1.0.0/libktsn.so",
		"/etc/ld.so.preload":       "/var/lib/ktsn/lib/1.0.0/ld.so.preload",
	}
	for _, container := range answer.ContainerResponses {
		for _, mount := range container.Mounts {
			if want[mount.ContainerPath] != mount.HostPath || !mount.ReadOnly {
				t.Errorf("mount %v", mount)
			}
		}
		if len(container.Mounts) != len(want) || container.Envs["KTSN_POLICY"] != "strict" ||
			container.Envs["KTSN_RECEIVE"] != "expect" || len(container.Envs) != 2 {
			t.Errorf("%v", container)
		}
		// A plugin's LD_PRELOAD would lose to the pod's own and replace the image's.
		if _, has := container.Envs["LD_PRELOAD"]; has {
			t.Error("LD_PRELOAD is the image's and the pod's alone")
		}
	}
}

func TestAllocateRefusesWhatItCannotKeep(t *testing.T) {
	plugin := New(Config{Resource: "ktsn.io/tsn"}, &library{})
	plugin.SetDevices(1, true)
	broken := New(Config{Resource: "ktsn.io/tsn"}, &library{err: errors.New("not installed yet")})
	broken.SetDevices(1, true)
	for name, c := range map[string]struct {
		plugin *Plugin
		ids    []string
		code   codes.Code
		text   string
	}{
		"unknown device": {plugin, []string{"tsn-0", "tsn-1"}, codes.NotFound, "tsn-1: no such device of ktsn.io/tsn; this node offers 1"},
		"no device":      {plugin, nil, codes.InvalidArgument, "without devices"},
		"no library":     {broken, []string{"tsn-0"}, codes.FailedPrecondition, "libktsn.so: not installed yet"},
	} {
		_, err := c.plugin.Allocate(context.Background(), &api.AllocateRequest{
			ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: c.ids}},
		})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithCDITheSpecificationHasTheMounts(t *testing.T) {
	cdi := filepath.Join(t.TempDir(), "cdi")
	plugin := New(Config{
		Resource: "ktsn.io/tsn", ClientDir: "/run/ktsn/client", CDIDir: cdi, ClientPolicy: "kernel",
	}, &library{})
	plugin.SetDevices(2, true)
	if err := plugin.WriteCDI("/var/lib/ktsn/lib/1.0.0"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(cdi, "ktsn.io-tsn.json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cdiSpec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.Kind != "ktsn.io/tsn" || len(spec.Devices) != 2 || spec.Devices[1].Name != "tsn-1" ||
		len(spec.ContainerEdits.Mounts) != 3 || spec.ContainerEdits.Env[0] != "KTSN_POLICY=kernel" {
		t.Errorf("%s", data)
	}
	for _, mount := range spec.ContainerEdits.Mounts {
		if mount.Options[0] != "ro" {
			t.Errorf("%v is writable", mount)
		}
	}
	answer, err := plugin.Allocate(context.Background(), &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"tsn-1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	container := answer.ContainerResponses[0]
	if len(container.CdiDevices) != 1 || container.CdiDevices[0].Name != "ktsn.io/tsn=tsn-1" || len(container.Mounts) != 0 {
		t.Errorf("%v: mounts are the specification's", container)
	}
	if err := New(Config{Resource: "ktsn.io/tsn"}, &library{}).WriteCDI("/x"); err != nil {
		t.Errorf("off: %v", err)
	}
}

func entry(states uint32, interval uint64) *nodeapi.GateControlEntry {
	return &nodeapi.GateControlEntry{GateStatesValue: states, TimeIntervalValue: interval}
}

func TestCapacityFollowsTheWindows(t *testing.T) {
	auto := Capacity{Unscheduled: 64, SlotOctets: 1522}
	// 1542 octets at 1 Gbit/s are 12,336 ns; 10 µs to hand over: 22,336 ns for each slot.
	state := func(cycle uint64, entries ...*nodeapi.GateControlEntry) *nodeapi.ScheduleState {
		return &nodeapi.ScheduleState{
			LinkSpeed: 1_000_000_000, HandOverNs: 10_000,
			Admin: &nodeapi.GateParameters{GateEnabled: true, CycleTime: cycle, ControlList: entries},
		}
	}
	disabled := state(1_000_000, entry(0x80, 200_000), entry(0x01, 800_000))
	disabled.Admin.GateEnabled = false
	unknownSpeed := state(1_000_000, entry(0x80, 200_000), entry(0x01, 800_000))
	unknownSpeed.LinkSpeed = 0
	operOnly := state(1_000_000, entry(0x80, 200_000), entry(0x01, 800_000))
	operOnly.Oper, operOnly.Admin = operOnly.Admin, nil
	for name, c := range map[string]struct {
		capacity Capacity
		state    *nodeapi.ScheduleState
		want     int
	}{
		"a number counts":              {Capacity{Fixed: 7, Unscheduled: 64, SlotOctets: 1522}, state(1_000_000, entry(0x80, 200_000), entry(1, 1)), 7},
		"nothing known":                {auto, nil, 64},
		"no schedule":                  {auto, &nodeapi.ScheduleState{LinkSpeed: 1_000_000_000}, 64},
		"gates disabled":               {auto, disabled, 64},
		"speed unknown":                {auto, unknownSpeed, 64},
		"one window":                   {auto, state(1_000_000, entry(0x80, 200_000), entry(0x01, 800_000)), 8},
		"in force":                     {auto, operOnly, 8},
		"two windows, each for itself": {auto, state(1_000_000, entry(0x80, 200_000), entry(0x21, 300_000), entry(1, 500_000)), 8 + 13},
		"best effort does not count":   {auto, state(1_000_000, entry(0x01, 500_000), entry(0x00, 500_000)), 64},
		"always open does not count":   {auto, state(1_000_000, entry(0x02, 500_000), entry(0x03, 500_000)), 64},
		"the cycle cuts off":           {auto, state(100_000, entry(0x01, 50_000), entry(0x80, 200_000)), 2},
		"entries beyond the cycle":     {auto, state(100_000, entry(0x01, 200_000), entry(0x80, 200_000)), 0},
		"shorter frames":               {Capacity{Unscheduled: 64, SlotOctets: 128}, state(1_000_000, entry(0x80, 200_000), entry(1, 800_000)), 17},
		"a frame has 64 octets":        {Capacity{Unscheduled: 64}, state(1_000_000, entry(0x80, 200_000), entry(1, 800_000)), 18},
		"bounded":                      {Capacity{SlotOctets: 64}, &nodeapi.ScheduleState{LinkSpeed: 1 << 62, Admin: state(0, entry(2, 1<<62), entry(1, 1)).Admin}, DevicesMax},
	} {
		if got := c.capacity.Of(c.state); got != c.want {
			t.Errorf("%s: %d slots, expected %d", name, got, c.want)
		}
	}
}

func TestParseCapacity(t *testing.T) {
	for text, want := range map[string]int{"": 0, "auto": 0, "1": 1, "4096": 4096} {
		if got, err := ParseCapacity(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "4097", "many", "1e3"} {
		if _, err := ParseCapacity(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
