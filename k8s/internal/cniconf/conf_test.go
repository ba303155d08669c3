// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/internal/nodepb"
	"ktsn.io/ktsn/k8s/internal/nodewire"
)

const head = `{"cniVersion":"1.1.0","name":"tsn","type":"tsn-cni"`

// Every field wrong in turn: what it says, and the path that the error has to begin with.
var wrongFields = []struct{ field, path string }{
	{`"nonsense":1`, "nonsense"},
	{`"netns":"x"`, "netns"},
	{`"interface":"eth0"`, "interface"},
	{`"Uplink":"eth1"`, "Uplink"}, // another case is another word
	{`"allow-policy-bypass":true`, "allow-policy-bypass"},
	{`"name":7`, "name"},
	{`"name":""`, "name"},
	{`"cniVersion":1.1`, "cniVersion"},
	{`"capabilities":{"bandwidth":true}`, "capabilities.bandwidth"},
	{`"capabilities":[]`, "capabilities"},
	{`"runtimeConfig":7`, "runtimeConfig"},
	{`"args":[]`, "args"},
	{`"args":{"cni":7}`, "args.cni"},
	{`"prevResult":[]`, "prevResult"},
	{`"ipam":7`, "ipam"},
	{`"ipam":{"subnet":"10.0.0.0/8"}`, "ipam.type"},
	{`"ipam":{"type":""}`, "ipam.type"},
	{`"ipam":{"type":"../../bin/sh"}`, "ipam.type"},
	{`"dns":{"nameservers":7}`, "dns"},
	{`"deviceID":7`, "deviceID"},
	{`"mtu":"1500"`, "mtu"},
	{`"mtu":67`, "mtu"},
	{`"mtu":65536`, "mtu"},
	{`"mtu":-1`, "mtu"},
	{`"mtu":1500.5`, "mtu"},
	{`"mtu":null`, "mtu"},
	{`"mac":"02:00:00:00:00"`, "mac"},
	{`"mac":"01:00:5e:00:00:07"`, "mac"},
	{`"mac":"00:00:00:00:00:00"`, "mac"},
	{`"mac":"02:00:00:00:00:00:00:07"`, "mac"},
	{`"mac":7`, "mac"},
	{`"attach":"some"`, "attach"},
	{`"attach":true`, "attach"},
	{`"policies":"off"`, "policies"},
	{`"run_dir":"run"`, "run_dir"},
	{`"state_dir":""`, "state_dir"},
	{`"uplink":""`, "uplink"},
	{`"uplink":["eth1"]`, "uplink"},
	{`"overlay":"vxlan"`, "overlay"},
	{`"overlay":{}x`, "configuration"},
	{`"overlay":{"geneve":{}}`, "overlay.geneve"},
	{`"overlay":{"vxlan":"flannel.1"}`, "overlay.vxlan"},
	{`"overlay":{"vxlan":{"id":7}}`, "overlay.vxlan.id"},
	{`"overlay":{"vxlan":{"mode":7}}`, "overlay.vxlan.mode"},
	{`"overlay":{"vxlan":{"vni":0}}`, "overlay.vxlan.vni"},
	{`"overlay":{"vxlan":{"vni":16777216}}`, "overlay.vxlan.vni"},
	{`"overlay":{"vxlan":{"port":65536}}`, "overlay.vxlan.port"},
	{`"overlay":{"vxlan":{"local":""}}`, "overlay.vxlan.local"},
	{`"overlay":{"vxlan":{"device":1}}`, "overlay.vxlan.device"},
	{`"overlay":{"vxlan":{"learn_from":null}}`, "overlay.vxlan.learn_from"},
	{`"overlay":{"vxlan":{"peers":[]}}`, "overlay.vxlan.peers"},
	{`"overlay":{"vxlan":{"peers":["10.0.0.0/8"]}}`, "overlay.vxlan.peers[0]"},
	{`"overlay":{"vxlan":{"peers":[{"vtep":"192.0.2.1"},{"node":"x"}]}}`, "overlay.vxlan.peers[1].node"},
	{`"overlay":{"vxlan":{"flood":"192.0.2.1"}}`, "overlay.vxlan.flood"},
	{`"overlay":{"vxlan":{"flood_interface":"yes"}}`, "overlay.vxlan.flood_interface"},
	{`"overlay":{"vxlan":{"ttl":256}}`, "overlay.vxlan.ttl"},
	{`"overlay":{"vxlan":{"tos":"high"}}`, "overlay.vxlan.tos"},
	{`"overlay":{"vxlan":{"df":true}}`, "overlay.vxlan.df"},
	{`"overlay":{"vxlan":{"udp_checksum":1}}`, "overlay.vxlan.udp_checksum"},
	{`"ingress":1`, "ingress"},
	{`"take":"some"`, "take"},
	{`"take":{"priority_min":16}`, "take.priority_min"},
	{`"take":{"priority":6}`, "take.priority"},
	{`"take":6`, "take"},
	{`"destinations":"10.0.0.0/8"`, "destinations"},
	{`"destinations":[]`, "destinations"},
	{`"destinations":["10.0.0.0/8",7]`, "destinations[1]"},
	{`"classes":[-1]`, "classes[0]"},
	{`"classes":[]`, "classes"},
	{`"late":7`, "late"},
	{`"overrun_limit":1000000`, "overrun_limit"},
	{`"overrun_limit":"0s"`, "overrun_limit"},
	{`"overrun_limit":"-1ms"`, "overrun_limit"},
	{`"horizon":"soon"`, "horizon"},
	{`"capture":false`, "capture"},
	{`"capture_priority":16`, "capture_priority"},
	{`"allow_tai":"true"`, "allow_tai"},
	{`"allow_policy_bypass":1`, "allow_policy_bypass"},
	{`"vlan":0`, "vlan"},
	{`"vlan":4095`, "vlan"},
	{`"pcp":8`, "pcp"},
	{`"slots":0`, "slots"},
	{`"slots":4294967296`, "slots"},
	{`"clients_max":0`, "clients_max"},
	{`"octets_max":0`, "octets_max"},
	{`"octets_max":"4MiB"`, "octets_max"},
	{`"memory_max":0`, "memory_max"},
	{`"args":{"cni":{"classes":[7]}}`, "args.cni.classes"},
	{`"args":{"cni":{"allow_policy_bypass":true}}`, "args.cni.allow_policy_bypass"},
	{`"args":{"cni":{"late":7}}`, "args.cni.late"},
	{`"args":{"cni":{"mac":"x"}}`, "args.cni.mac"},
	{`"args":{"cni":{"ktsn.io/attach":"maybe"}}`, "args.cni.ktsn.io/attach"},
	{`"capabilities":{"mac":true},"runtimeConfig":{"mac":"x"}`, "runtimeConfig.mac"},
	{`"capabilities":{"io.kubernetes.cri.pod-annotations":true},"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"ktsn.io/attach":"1"}}`,
		"runtimeConfig.io.kubernetes.cri.pod-annotations.ktsn.io/attach"},
}

func TestEachFieldWrongInTurnIsNamed(t *testing.T) {
	for _, wrong := range wrongFields {
		conf, err := Parse([]byte(head+","+wrong.field+"}"), "")
		var found *Error
		if !errors.As(err, &found) {
			t.Errorf("%s: %v, %+v", wrong.field, err, conf)
			continue
		}
		if found.Field != wrong.path {
			t.Errorf("%s: names %q: %v", wrong.field, found.Field, err)
		}
		if found.Text == "" || len(err.Error()) > 700 {
			t.Errorf("%s: %v", wrong.field, err)
		}
	}
}

// Every field of the table above and of the message has a good value, which arrives.
func TestEveryFieldArrives(t *testing.T) {
	stdin := head + `,"uplink":"eth1","ingress":"short","take":{"priority_min":6},"destinations":["10.0.0.0/8"],"classes":[6,7],
		"late":"drop","overrun_limit":"300us","horizon":"2s","capture":"kernel","capture_priority":5,"allow_tai":false,
		"allow_policy_bypass":true,"vlan":7,"pcp":6,"slots":64,"clients_max":3,"octets_max":70000,"memory_max":9000000,"ethernet":"any",
		"overlay":{"vxlan":{"mode":"bridged","vni":42,"port":8472,"local":"192.0.2.1","device":"x","learn_from":"y",
		"peers":[{"prefix":"10.1.0.0/16","vtep":"192.0.2.2","mac":"02:00:00:00:00:01"}],"flood":["192.0.2.3"],"flood_interface":true,
		"ttl":9,"tos":"inherit","df":"set","udp_checksum":false}},
		"mtu":1400,"mac":"02:00:00:00:00:07","attach":"all","policies":"ignore","run_dir":"/r","state_dir":"/s","deviceID":"tsn-3",
		"pciBusID":"tsn-3","ipam":{"type":"static","addresses":[]},"dns":{"nameservers":["192.0.2.9"]},
		"cni.dev/attachments":[],"capabilities":{"ips":true,"mac":false}}`
	conf, err := Parse([]byte(stdin), "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c")
	if err != nil {
		t.Fatal(err)
	}
	value := func(v uint32) *uint32 { return &v }
	yes, no := true, false
	want := &nodewire.Attachment{
		Uplink: "eth1", Ingress: "short", TakePriorityMin: value(6), Destinations: []string{"10.0.0.0/8"}, Classes: []uint32{6, 7},
		Late: "drop", OverrunLimitNs: 300_000, HorizonNs: 2_000_000_000, Capture: "kernel", CapturePriority: 5, AllowTai: &no,
		AllowPolicyBypass: &yes, Vlan: value(7), Pcp: value(6), Slots: 64, ClientsMax: 3, OctetsMax: 70000, MemoryMax: 9000000, Ethernet: "any",
		Vxlan: &nodewire.Vxlan{Mode: "bridged", Vni: 42, Port: 8472, Local: "192.0.2.1", Device: "x", LearnFrom: "y",
			Peers: []*nodewire.VxlanPeer{{Prefix: "10.1.0.0/16", Vtep: "192.0.2.2", Mac: "02:00:00:00:00:01"}},
			Flood: []string{"192.0.2.3"}, FloodInterface: &yes, Ttl: "9", Tos: "inherit", Df: "set", UdpChecksum: &no},
	}
	if !reflect.DeepEqual(conf.Attachment, want) {
		t.Errorf("%+v\nexpected\n%+v", conf.Attachment, want)
	}
	if conf.MTU != 1400 || conf.MAC.String() != "02:00:00:00:00:07" || conf.Policies != "ignore" || conf.RunDir != "/r" ||
		conf.StateDir != "/s" || conf.DeviceID != "tsn-3" || conf.IPAMType != "static" || conf.Pod != (Pod{"a", "b", "c"}) {
		t.Errorf("%+v", conf)
	}
	// A field that the message gets later must get its word here.
	var overlayGiven bool
	known := attachmentFields(&nodewire.Attachment{}, &overlayGiven)
	fields := (&nodepb.Attachment{}).ProtoReflect().Descriptor().Fields()
	others := map[string]string{"vxlan": "overlay", "overrun_limit_ns": "overrun_limit", "horizon_ns": "horizon", "take_priority_min": "take"}
	for index := range fields.Len() {
		name := string(fields.Get(index).Name())
		if other, ok := others[name]; ok {
			name = other
		}
		if _, ok := known[name]; !ok && name != "name" && name != "netns" && name != "interface" {
			t.Errorf("no word for the message's %s", name)
		}
	}
}

func TestWhoGoesBeforeWhom(t *testing.T) {
	const conf = `"mac":"02:00:00:00:00:01"`
	const args = `"args":{"cni":{"mac":"02:00:00:00:00:02","ips":["10.0.0.1"],"take":"txtime","late":"send"}}`
	const runtime = `"capabilities":{"mac":true},"runtimeConfig":{"mac":"02:00:00:00:00:03","other":1}`
	for _, c := range []struct{ fields, environment, mac string }{
		{conf, "", "02:00:00:00:00:01"},
		{conf, "MAC=02:00:00:00:00:04", "02:00:00:00:00:04"},
		{conf + "," + args, "MAC=02:00:00:00:00:04", "02:00:00:00:00:02"},
		{conf + "," + args + "," + runtime, "MAC=02:00:00:00:00:04", "02:00:00:00:00:03"},
		{conf + `,"capabilities":{"mac":true},"runtimeConfig":{"mac":""}`, "", "02:00:00:00:00:01"},
		{conf + `,"runtimeConfig":{"mac":"02:00:00:00:00:03"}`, "", "02:00:00:00:00:01"}, // no capability: not ours
	} {
		found, err := Parse([]byte(head+","+c.fields+"}"), c.environment)
		if err != nil || found.MAC.String() != c.mac {
			t.Errorf("%s, %s: %v, %v", c.fields, c.environment, found, err)
		}
	}
	found, err := Parse([]byte(head+`,"take":{"priority_min":3},"late":"drop",`+args+"}"), "")
	if err != nil || found.Attachment.TakePriorityMin != nil || found.Attachment.Late != "send" {
		t.Errorf("%v, %v", found, err)
	}
}

func TestWhoIsAttached(t *testing.T) {
	const chained = `,"prevResult":{"cniVersion":"1.1.0"}`
	annotated := func(value string) string {
		return `,"capabilities":{"` + AnnotationsCapability + `":true},"runtimeConfig":{"` + AnnotationsCapability +
			`":{"a.b/c":"d","ktsn.io/attach":"` + value + `"}}`
	}
	for _, c := range []struct {
		fields, args string
		wanted       bool
	}{
		{"", "", true},
		{"", "KTSN_ATTACH=false", false},
		{`,"attach":"asked"`, "", false},
		{`,"attach":"asked"`, "KTSN_ATTACH=true", true},
		{chained, "", false},
		{chained, "KTSN_ATTACH=true", true},
		{chained + annotated("true"), "", true},
		{chained + annotated("false"), "KTSN_ATTACH=true", false},
		{chained + `,"args":{"cni":{"ktsn.io/attach":"true"}}`, "", true},
		{chained + `,"attach":"all"`, "", true},
		{chained + `,"attach":"all"`, "KTSN_ATTACH=false", true},
	} {
		found, err := Parse([]byte(head+c.fields+"}"), c.args)
		if err != nil || found.IsWanted() != c.wanted {
			t.Errorf("%s, %s: %v, %v", c.fields, c.args, found, err)
		}
	}
}

func TestFieldsThatAChainLeavesWithoutMeaning(t *testing.T) {
	const chained = `,"prevResult":{"cniVersion":"1.1.0"}`
	for field, path := range map[string]string{
		`"mtu":1400`: "mtu", `"mac":"02:00:00:00:00:07"`: "mac", `"ipam":{"type":"static"}`: "ipam", `"dns":{"nameservers":["192.0.2.1"]}`: "dns",
	} {
		conf, err := Parse([]byte(head+chained+","+field+"}"), "MAC=02:00:00:00:00:09")
		if err != nil {
			t.Fatal(err)
		}
		var found *Error
		if err := conf.CheckChain(); !errors.As(err, &found) || found.Field != path {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for args, word := range map[string]string{
		"nonsense": "KEY=VALUE", "KTSN_ATTACH=yes": "KTSN_ATTACH", "MAC=x": "CNI_ARGS.MAC",
		"A=" + strings.Repeat("x", 1000) + ";" + strings.Repeat("y", 1000): "KEY=VALUE",
	} {
		if _, err := Parse([]byte(head+"}"), args); err == nil || !strings.Contains(err.Error(), word) || len(err.Error()) > 300 {
			t.Errorf("%.40s: %v", args, err)
		}
	}
}

// Hostile standard input: an error or a configuration, never a panic, and every error names a place.
func FuzzParse(f *testing.F) {
	for _, wrong := range wrongFields {
		f.Add([]byte(head+","+wrong.field+"}"), "MAC=x;KTSN_ATTACH=true")
	}
	for _, text := range []string{"", "null", "[]", `"x"`, "{", "7", `{"ipam":null}`, strings.Repeat("[", 20000), `{"a":` + strings.Repeat(`{"a":`, 9000)} {
		f.Add([]byte(text), ";;=;K8S_POD_NAME=")
	}
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		conf, err := Parse(stdin, args)
		var found *Error
		if err != nil {
			if !errors.As(err, &found) || len(found.Text) > 2000 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		conf.IsWanted()
		_ = conf.CheckChain()
		var all map[string]json.RawMessage
		if err := json.Unmarshal(stdin, &all); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		if conf.MAC != nil && (len(conf.MAC) != 6 || conf.MAC[0]&1 != 0) {
			t.Fatalf("%v", conf.MAC)
		}
	})
}
