// SPDX-License-Identifier: Apache-2.0

// Package vmconfig holds what `ktsn vm config --format kubevirt` prints against KubeVirt's own types.
//
// In: testdata, which the test tests/tests/vm_config.rs holds to what ktsn prints. Out: a failure for a field that KubeVirt does not know.
package vmconfig

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	kubevirt "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// KubeVirt's type has a method of its own for reading, which takes fields that it does not know. This type has none.
type strictSpec kubevirt.VirtualMachineInstanceSpec

// parse reads a definition; a field without a place in KubeVirt's types is an error.
func parse(text []byte) (*kubevirt.VirtualMachine, error) {
	machine := &kubevirt.VirtualMachine{}
	if err := yaml.UnmarshalStrict(text, machine); err != nil {
		return nil, err
	}
	var parts struct {
		Spec struct {
			Template struct {
				Spec json.RawMessage `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &parts); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(parts.Spec.Template.Spec))
	decoder.DisallowUnknownFields()
	return machine, decoder.Decode(&strictSpec{})
}

func read(t *testing.T, file string) (*kubevirt.VirtualMachine, []byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	machine, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return machine, text
}

// What real-time guests need, by KubeVirt's names: a definition with other names would be read, and have no effect.
func check(t *testing.T, file string, machine *kubevirt.VirtualMachine) {
	t.Helper()
	if machine.APIVersion != kubevirt.GroupVersion.String() || machine.Kind != kubevirt.VirtualMachineGroupVersionKind.Kind {
		t.Errorf("%s: %s %s", file, machine.APIVersion, machine.Kind)
	}
	if machine.Spec.RunStrategy == nil || *machine.Spec.RunStrategy != kubevirt.RunStrategyAlways {
		t.Errorf("%s: run strategy %v", file, machine.Spec.RunStrategy)
	}
	spec := machine.Spec.Template.Spec
	cpu := spec.Domain.CPU
	if !cpu.DedicatedCPUPlacement || !cpu.IsolateEmulatorThread || cpu.Realtime == nil || cpu.NUMA == nil || cpu.NUMA.GuestMappingPassthrough == nil {
		t.Errorf("%s: CPUs %+v", file, cpu)
	}
	if cpu.Model != kubevirt.CPUModeHostPassthrough {
		t.Errorf("%s: model %s", file, cpu.Model)
	}
	if spec.Domain.Memory.Hugepages == nil || spec.Domain.Memory.Guest == nil {
		t.Errorf("%s: memory %+v", file, spec.Domain.Memory)
	}
	names := map[string]bool{}
	for _, network := range spec.Networks {
		names[network.Name] = true
	}
	for _, device := range spec.Domain.Devices.Interfaces {
		if !names[device.Name] {
			t.Errorf("%s: interface %s has no network", file, device.Name)
		}
	}
	volumes := map[string]bool{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = volume.PersistentVolumeClaim != nil
	}
	for _, disk := range spec.Domain.Devices.Disks {
		if !volumes[disk.Name] {
			t.Errorf("%s: disk %s has no volume", file, disk.Name)
		}
	}
}

func TestKubeVirtReadsEveryField(t *testing.T) {
	for file, is := range map[string]func(kubevirt.Interface) bool{
		"bridge.yaml":  func(device kubevirt.Interface) bool { return device.Bridge != nil },
		"macvtap.yaml": func(device kubevirt.Interface) bool { return device.Binding != nil && device.Binding.Name == "macvtap" },
		"sriov.yaml":   func(device kubevirt.Interface) bool { return device.SRIOV != nil },
	} {
		machine, _ := read(t, file)
		check(t, file, machine)
		devices := machine.Spec.Template.Spec.Domain.Devices
		if !is(devices.Interfaces[1]) {
			t.Errorf("%s: interface %+v", file, devices.Interfaces[1])
		}
		multiqueue := devices.NetworkInterfaceMultiQueue
		if (multiqueue != nil && *multiqueue) != (file != "sriov.yaml") {
			t.Errorf("%s: several queues: %v", file, multiqueue)
		}
	}
}

func TestAnUnknownFieldIsRefused(t *testing.T) {
	_, text := read(t, "bridge.yaml")
	for _, known := range []string{"runStrategy", "dedicatedCpuPlacement", "hugepages", "networkInterfaceMultiqueue", "networkName"} {
		broken := bytes.Replace(text, []byte(known+":"), []byte(known+"s:"), 1)
		if _, err := parse(broken); err == nil {
			t.Errorf("%ss was taken, which KubeVirt does not know", known)
		}
	}
}
