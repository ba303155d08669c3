// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

const head = `{"cniVersion":"1.1.0","name":"tsn","type":"tsn-cni"`

// Every field wrong in turn: what it says, and the path that the error has to begin with.
var wrongFields = []struct{ field, path string }{
	{`"netns":"x"`, "netns"},
	{`"interface":"eth0"`, "interface"},
	{`"name":7`, "name"},
	{`"name":""`, "name"},
	{`"cniVersion":1.1`, "cniVersion"},
	{`"capabilities":{"bandwidth":true}`, "capabilities.bandwidth"},
	{`"capabilities":[]`, "capabilities"},
	{`"runtimeConfig":7`, "runtimeConfig"},
	{`"args":[]`, "args"},
	{`"args":{"cni":7}`, "args.cni"},
	{`"args":{"CNI":{}}`, "args.CNI"},
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
	{`"uplink":null`, "uplink"},
	{`"uplink":""`, "uplink"},
	{`"addresses":[]`, "addresses"},
	{`"destinations":[ ]`, "destinations"},
	{`"overlay":{}x`, "configuration"},
	{`"args":{"cni":{"classes":[7]}}`, "args.cni.classes"},
	{`"args":{"cni":{"allow_policy_bypass":true}}`, "args.cni.allow_policy_bypass"},
	{`"args":{"cni":{"late":null}}`, "args.cni.late"},
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

// Every field of tsn-cni's own has a good value that is stored; every other key goes to ktsnd as it is written.
func TestEveryFieldArrives(t *testing.T) {
	const attachment = `"uplink":"eth1","ingress":"short","egress":"vhost-user","vhost_socket":"/run/vhost/","vhost_queues":2,"receive":"expect","receive_period":"1ms","take":{"priority_min":6},"destinations":["10.0.0.0/8"],"classes":[6,7],
		"late":"drop","overrun_limit":"300us","horizon":"2s","capture":"kernel","capture_priority":5,"allow_tai":false,
		"allow_policy_bypass":true,"vlan":7,"pcp":6,"slots":64,"clients_max":3,"octets_max":70000,"memory_max":18446744073709551615,"ethernet":"any",
		"overlay":{"vxlan":{"mode":"bridged","vni":42,"port":8472,"local":"192.0.2.1","device":"x","learn_from":"y",
		"peers":[{"prefix":"10.1.0.0/16","vtep":"192.0.2.2","mac":"02:00:00:00:00:01"}],"flood":["192.0.2.3"],"flood_interface":true,
		"ttl":9,"tos":"inherit","df":"set","udp_checksum":false}},"Uplink":7,"later":{"a":[1,"<b>"]}`
	stdin := head + "," + attachment + `,
		"mtu":1400,"mac":"02:00:00:00:00:07","attach":"all","policies":"ignore","run_dir":"/r","state_dir":"/s","deviceID":"tsn-3",
		"pciBusID":"tsn-3","ipam":{"type":"static","addresses":[]},"dns":{"nameservers":["192.0.2.9"]},
		"cni.dev/attachments":[],"capabilities":{"ips":true,"mac":false}}`
	conf, err := Parse([]byte(stdin), "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c")
	if err != nil {
		t.Fatal(err)
	}
	if !isSame(t, conf.Attachment.JSON(), "{"+attachment+"}") {
		t.Errorf("%s\nexpected\n%s", conf.Attachment.JSON(), attachment)
	}
	if conf.MTU != 1400 || conf.MAC.String() != "02:00:00:00:00:07" || conf.Policies != "ignore" || conf.RunDir != "/r" ||
		conf.StateDir != "/s" || conf.DeviceID != "tsn-3" || conf.IPAMType != "static" || conf.Pod != (Pod{"a", "b", "c"}) {
		t.Errorf("%+v", conf)
	}
	read := conf.Attachment.Read()
	if read.Overlay.VXLAN == nil || *read.Overlay.VXLAN != (nodeapi.VXLAN{LearnFrom: "y", Device: "x", Local: "192.0.2.1"}) ||
		!slices.Equal(read.Destinations, []string{"10.0.0.0/8"}) || read.Ingress != "short" || read.Capture != "kernel" || !read.AllowPolicyBypass {
		t.Errorf("%+v", read)
	}
}

// isSame compares two JSON values; numbers by their digits.
func isSame(t *testing.T, one, other string) bool {
	t.Helper()
	var values [2]any
	for index, text := range []string{one, other} {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&values[index]); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

func TestKtsndsMessagesNameTheFieldOfTheInput(t *testing.T) {
	conf, err := Parse([]byte(head+`,"overlay":{"vxlan":{"vni":0}},"late":"drop","classes":[9],"args":{"cni":{"late":"soon"}}}`), "")
	if err != nil {
		t.Fatal(err)
	}
	for message, want := range map[string]string{
		"attachment.overlay.vxlan.vni: 0": "overlay.vxlan.vni: 0", "attachment.classes[0]: 9 at line 1 column 77": "classes[0]: 9",
		`attachment.late: "soon": expected`: `args.cni.late: "soon": expected`, "attachment.netns: gone": "attachment.netns: gone",
		"attachment: too long": "configuration: too long", "": "", "attachment.": "attachment.", "attachment.late": "args.cni.late",
	} {
		if found := conf.InOwnWords(message); found != want {
			t.Errorf("%q: %q, expected %q", message, found, want)
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
	if err != nil || string(found.Attachment["take"]) != `"txtime"` || string(found.Attachment["late"]) != `"send"` {
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

func TestWhoMayExpectArrivals(t *testing.T) {
	annotated := func(value string) string {
		return `,"capabilities":{"` + AnnotationsCapability + `":true},"runtimeConfig":{"` + AnnotationsCapability +
			`":{"ktsn.io/receive":"` + value + `"}}`
	}
	for _, c := range []struct{ fields, receive string }{
		{"", ""},
		{annotated("expect"), ""}, // the network grants nothing
		{`,"receive":"kernel"` + annotated("expect"), `"kernel"`},
		{`,"receive":"expect"`, `"expect"`},
		{`,"receive":"expect"` + annotated("kernel"), `"kernel"`},
		{`,"receive":"asked"`, `"kernel"`},
		{`,"receive":"asked"` + annotated("kernel"), `"kernel"`},
		{`,"receive":"asked"` + annotated("expect"), `"expect"`},
		{`,"receive":"asked","args":{"cni":{"ktsn.io/receive":"expect"}}`, `"expect"`},
		{`,"receive":"often"`, `"often"`}, // ktsnd refuses it
	} {
		found, err := Parse([]byte(head+c.fields+"}"), "")
		if err != nil || string(found.Attachment["receive"]) != c.receive {
			t.Errorf("%s: %v, %v", c.fields, found, err)
		}
	}
	for _, wrong := range []string{annotated("always"), `,"args":{"cni":{"receive":"expect"}}`} {
		if found, err := Parse([]byte(head+`,"receive":"asked"`+wrong+"}"), ""); err == nil {
			t.Errorf("%s: %v", wrong, found)
		}
	}
}

func TestWhoStatesThePeriod(t *testing.T) {
	const network, ofPod = `,"receive_period":"1ms"`, `,"args":{"cni":{"receive_period":"2ms"}}`
	annotated := func(value string) string {
		return `,"capabilities":{"` + AnnotationsCapability + `":true},"runtimeConfig":{"` + AnnotationsCapability +
			`":{"ktsn.io/receive-period":` + value + `}}`
	}
	for _, c := range []struct{ fields, period, path string }{
		{"", "", ""},
		{network, `"1ms"`, "receive_period"},
		{network + ofPod, `"2ms"`, "args.cni.receive_period"},
		{`,"args":{"cni":{"ktsn.io/receive-period":"3ms"}}`, `"3ms"`, "args.cni.ktsn.io/receive-period"},
		{network + annotated(`"4ms"`), `"4ms"`, "runtimeConfig." + AnnotationsCapability + ".ktsn.io/receive-period"},
		{network + ofPod + annotated(`"often"`), `"often"`, "runtimeConfig." + AnnotationsCapability + ".ktsn.io/receive-period"},
	} {
		found, err := Parse([]byte(head+c.fields+"}"), "")
		if err != nil || string(found.Attachment["receive_period"]) != c.period {
			t.Errorf("%s: %v, %v", c.fields, found, err)
			continue
		}
		// ktsnd's error names the place where the value is written.
		if c.path != "" {
			if said := found.InOwnWords(`attachment.receive_period: "1": expected`); said != c.path+`: "1": expected` {
				t.Errorf("%s: %s", c.fields, said)
			}
		}
	}
	for _, wrong := range []string{annotated("7"), annotated(`""`), `,"args":{"cni":{"receive-period":"1ms","ktsn.io/receive-period":1}}`} {
		if found, err := Parse([]byte(head+wrong+"}"), ""); err == nil {
			t.Errorf("%s: %v", wrong, found)
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
// Every key of ktsnd's schema is the pod's, the network's or the runtime's: a new key is the network's until it is put into podFields.
func TestAPodMaySetNoOtherKey(t *testing.T) {
	keys := nodeapi.AttachmentKeys()
	for _, field := range podFields {
		if !slices.Contains(keys, field) {
			t.Errorf("podFields: the schema has no key %q", field)
		}
	}
	for _, key := range keys {
		_, err := Parse([]byte(head+`,"args":{"cni":{"`+key+`":"x"}}}`), "")
		isRefused := err != nil && strings.Contains(err.Error(), "a pod may not set it")
		ofRuntime := key == "name" || key == "netns" || key == "interface"
		if isRefused == (ofRuntime || slices.Contains(podFields, key)) {
			t.Errorf("args.cni.%s: %v", key, err)
		}
	}
}

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
		_ = conf.CheckIPAM()
		var all map[string]json.RawMessage
		if err := json.Unmarshal(stdin, &all); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		var passed map[string]json.RawMessage
		if err := json.Unmarshal([]byte(conf.Attachment.JSON()), &passed); err != nil {
			t.Fatalf("ktsnd would get what is no JSON: %v", err)
		}
		for key, value := range passed {
			if !slices.Contains(podFields, key) && !isSame(t, string(value), string(all[key])) {
				t.Fatalf("%q: ktsnd would get %s, not %s", key, value, all[key])
			}
		}
		conf.Attachment.Read()
		if conf.MAC != nil && (len(conf.MAC) != 6 || conf.MAC[0]&1 != 0) {
			t.Fatalf("%v", conf.MAC)
		}
	})
}
