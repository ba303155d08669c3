// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"ktsn.io/ktsn/k8s/internal/command"
)

func parse(environment map[string]string, arguments ...string) (Config, error) {
	return Parse(arguments, func(name string) string { return environment[name] }, io.Discard)
}

func TestFlagsAndEnvironment(t *testing.T) {
	c, err := parse(map[string]string{"NODE_NAME": "kn1", "KTSN_TSN_CIDR": "10.99.0.0/16,fd99::/48", "KTSN_CAPACITY": "9", "KTSN_HEALTH_GRACE": "7s"},
		"--capacity", "12", "--uplink=eth1")
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeName != "kn1" || len(c.CIDRs) != 2 || c.Capacity.Fixed != 12 || c.HealthGrace != 7*time.Second || c.Uplink != "eth1" ||
		c.RunDir != "/run/ktsn" || c.Network.Device != "ktsn.1" || c.Network.VNI != 1588 || c.Network.Port != 4789 {
		t.Errorf("%+v", c)
	}
	if _, err := parse(nil, "--version"); !errors.Is(err, command.ErrVersion) {
		t.Errorf("--version asks for nothing else: %v", err)
	}
}

func TestWrongFlagsSayWhatIsExpected(t *testing.T) {
	good := []string{"--node-name=kn1", "--tsn-cidr=10.99.0.0/16"}
	if _, err := parse(nil, good...); err != nil {
		t.Fatal(err)
	}
	for argument, text := range map[string]string{
		"--node-name=":                    "--node-name: missing",
		"--tsn-cidr=":                     "--tsn-cidr: missing",
		"--tsn-cidr=10.99.0.1/16":         `--tsn-cidr: found "10.99.0.1/16", expected the network itself: 10.99.0.0/16`,
		"--capacity=0":                    "--capacity: found",
		"--capacity-unscheduled=x":        "invalid value",
		"--capacity-unscheduled=-1":       "--capacity-unscheduled: found -1",
		"--slot-octets=63":                "--slot-octets: found 63",
		"--vxlan-vni=0":                   "--vxlan-vni: found 0",
		"--vxlan-vni=16777216":            "--vxlan-vni: found 16777216",
		"--vxlan-port=65536":              "--vxlan-port: found 65536",
		"--vxlan-device=a/b":              "--vxlan-device: found",
		"--vxlan-device=abcdefghijklmnop": "--vxlan-device: found",
		"--mtu=1279":                      "--mtu: found 1279",
		"--health-grace=-1s":              "--health-grace: found",
		"--tls-cert=/c":                   "--tls-cert, --tls-key: one is missing",
		"--client-policy=maybe":           "--client-policy: found",
		"--client-receive=often":          "--client-receive: found",
		"--rt-check-duration=1h":          "--rt-check-duration: found 1h0m0s",
		"--resource=tsn":                  "--resource: found",
		"--log-level=loud":                "--log-level: found",
		"--unknown":                       "not defined",
		"word":                            "unexpected argument",
	} {
		if _, err := parse(nil, append(good, argument)...); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", argument, err)
		}
	}
	if _, err := parse(map[string]string{"KTSN_VXLAN_VNI": "many"}, good...); err == nil || !strings.HasPrefix(err.Error(), "KTSN_VXLAN_VNI: found") {
		t.Errorf("the environment's fault: %v", err)
	}
	services := map[string]string{"KUBERNETES_SERVICE_HOST": "10.99.0.1"}
	if _, err := parse(services, good...); err == nil || !strings.Contains(err.Error(), "overlaps 10.99.0.1/32 (the API server") {
		t.Errorf("the range holds the API server's service: %v", err)
	}
	if _, err := parse(nil, "--node-name=kn1", "--overlay=false"); err != nil {
		t.Errorf("without an overlay no prefixes are needed: %v", err)
	}
}

func TestHelpHasExamples(t *testing.T) {
	var out bytes.Buffer
	_, err := Parse([]string{"--help"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "Examples:") || !strings.Contains(out.String(), "-tsn-cidr") {
		t.Errorf("%v: %s", err, out.String())
	}
}
