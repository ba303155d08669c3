// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"ktsn.io/ktsn/k8s/internal/command"
	"ktsn.io/ktsn/k8s/internal/deviceplugin"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Config is what the command line says.
type Config struct {
	NodeName   string
	Kubeconfig string
	RunDir     string
	KubeletDir string

	Resource      string
	Capacity      deviceplugin.Capacity
	HealthGrace   time.Duration
	ClientPolicy  string
	ClientReceive string
	CDIDir        string

	Uplink  string
	CIDRs   []netip.Prefix
	Overlay bool
	Network overlaynet.Config

	InstallFrom string
	LibDir      string
	CNIBinDir   string
	CNIConf     string
	CNIConfDir  string
	CNIStateDir string

	// RTCheck: requests for a real-time check are answered, by RTProgram for RTDuration.
	RTCheck    bool
	RTProgram  string
	RTDuration time.Duration

	Listen       string
	SecureListen string
	TLSCert      string
	TLSKey       string
	Log          *slog.Logger
}

const help = `ktsn-node-agent: KTSN's part of one Kubernetes node

It offers the node's TSN slots to the kubelet, installs libktsn.so and tsn-cni, keeps the TSN network's VXLAN device,
tells tsn-cni about the node (RUN_DIR/node.json, RUN_DIR/policies.json), applies GateSchedules, and shows metrics.
Every flag can be given in the environment too: --run-dir as KTSN_RUN_DIR. The command line wins.

Examples:
  ktsn-node-agent --node-name $(hostname) --kubeconfig /etc/kubernetes/kubelet.conf --tsn-cidr 10.99.0.0/16
  ktsn-node-agent --capacity 16 --overlay=false             # in a pod; NODE_NAME by the downward API
  ktsn-node-agent --uplink eth1 --tsn-cidr 10.99.0.0/16,fd99::/48 --vxlan-vni 1588

ktsn-node-agent probe and ktsn-node-agent remove look at a node and clear it, once: ktsn k8s runs them.

Flags:
`

// Parse reads the command line. flag.ErrHelp asks for nothing but what was printed, command.ErrVersion for the version.
func Parse(arguments []string, environment func(string) string, output io.Writer) (Config, error) {
	c := Config{}
	set := command.NewLine("ktsn-node-agent", help, environment, output)
	set.StringVar(&c.NodeName, "node-name", environment("NODE_NAME"), "name of this Kubernetes Node (NODE_NAME)")
	set.StringVar(&c.Kubeconfig, "kubeconfig", environment("KUBECONFIG"), "kubeconfig `FILE`; empty: the pod's service account")
	set.StringVar(&c.RunDir, "run-dir", nodeapi.DefaultRunDir, "ktsnd's run `directory`")
	set.StringVar(&c.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's `directory`")
	set.StringVar(&c.Resource, "resource", "ktsn.io/tsn", "extended resource that pods ask for")
	capacity := set.String("capacity", "auto", "slots to offer: a number, or auto: as many frames of --slot-octets as fit into the scheduled windows of a cycle")
	set.IntVar(&c.Capacity.Unscheduled, "capacity-unscheduled", 64, "slots with --capacity auto while no class has windows of its own")
	set.IntVar(&c.Capacity.SlotOctets, "slot-octets", 1522, "longest frame of a slot, in `octets` with MAC header and FCS")
	set.DurationVar(&c.HealthGrace, "health-grace", 3*time.Second, "ktsnd may be away so long before the slots are unhealthy")
	set.StringVar(&c.ClientPolicy, "client-policy", "", "KTSN_POLICY in containers: kernel or strict; empty: the program's own")
	set.StringVar(&c.ClientReceive, "client-receive", "", "KTSN_RECEIVE in containers: kernel or expect (where the TSN network grants it); empty: the program's own")
	set.StringVar(&c.CDIDir, "cdi-dir", "", "write a CDI specification into this `directory` (/var/run/cdi) and answer with CDI names; empty: mounts")
	set.StringVar(&c.Uplink, "uplink", "", "`device` that TSN frames leave by; empty: the one with the Node's InternalIP")
	cidrs := set.String("tsn-cidr", "", "the TSN network's `prefixes`, IPv4 and IPv6 with a comma between them; needed with --overlay")
	set.BoolVar(&c.Overlay, "overlay", true, "keep a VXLAN device between the nodes")
	set.StringVar(&c.Network.Device, "vxlan-device", "ktsn.1", "`name` of the VXLAN device")
	set.IntVar(&c.Network.VNI, "vxlan-vni", 1588, "its VNI")
	set.IntVar(&c.Network.Port, "vxlan-port", 4789, "its UDP port")
	set.IntVar(&c.Network.MTU, "mtu", 0, "its MTU; 0: the uplink's less the tunnel's headers")
	set.StringVar(&c.InstallFrom, "install-from", "/usr/libexec/ktsn", "`directory` with libktsn.so.gz and tsn-cni.gz; empty: install nothing")
	set.StringVar(&c.LibDir, "lib-dir", "/var/lib/ktsn/lib", "`directory` on the node for versions of libktsn.so")
	set.StringVar(&c.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "`directory` of CNI plugins on the node")
	set.StringVar(&c.CNIConf, "cni-conf", "", "CNI configuration `FILE` to copy to the node; empty: none")
	set.StringVar(&c.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of CNI configurations on the node")
	set.StringVar(&c.CNIStateDir, "cni-state-dir", "/var/lib/cni/ktsn", "`directory` of tsn-cni's states")
	set.BoolVar(&c.RTCheck, "rt-check", false, "measure wake-up latencies when this Node's annotation ktsn.io/rt-check=now asks for it; the probe goes before all other threads, 100 times a second")
	set.DurationVar(&c.RTDuration, "rt-check-duration", 10*time.Second, "how long a check measures")
	folder := set.String("rt-check-dir", "", "not used any more: a check writes no file")
	set.StringVar(&c.RTProgram, "rt-check-program", "ktsn", "the program ktsn, which needs cyclictest")
	set.StringVar(&c.Listen, "listen", "127.0.0.1:9187", "`address` of /metrics, /readyz and /livez without TLS, for this node alone; empty: none")
	set.StringVar(&c.SecureListen, "secure-listen", "", "`address` of the same by TLS, /metrics for users who may get it (RBAC, nonResourceURLs); empty: none")
	set.StringVar(&c.TLSCert, "tls-cert", "", "certificate `FILE` (PEM) of --secure-listen, read again when it changes; empty: one that signs itself")
	set.StringVar(&c.TLSKey, "tls-key", "", "key `FILE` (PEM) of --tls-cert")
	var err error
	if c.Log, err = set.Read(arguments); err != nil {
		return c, err
	}
	if *folder != "" {
		c.Log.Warn("--rt-check-dir is not used any more: a real-time check writes no file; leave it out", "directory", *folder)
	}
	if err := c.check(*capacity, *cidrs); err != nil {
		return c, err
	}
	return c, overlaynet.CheckFree(c.CIDRs, overlaynet.ServiceClaim(environment))
}

func (c *Config) check(capacity, cidrs string) (err error) {
	if c.Capacity.Fixed, err = deviceplugin.ParseCapacity(capacity); err != nil {
		return err
	}
	if c.CIDRs, err = overlaynet.ParsePrefixes("--tsn-cidr", cidrs); err != nil {
		return err
	}
	for _, rule := range []struct {
		wrong bool
		text  string
	}{
		{c.NodeName == "", "--node-name: missing: say which Node this is (in a pod: NODE_NAME by the downward API, fieldRef spec.nodeName)"},
		{c.Overlay && len(c.CIDRs) == 0, "--tsn-cidr: missing: say which prefixes the TSN network has (10.99.0.0/16), the same as ktsn-controller's; or --overlay=false"},
		{c.Network.VNI < 1 || c.Network.VNI > 1<<24-1, fmt.Sprintf("--vxlan-vni: found %d, expected 1 to 16777215", c.Network.VNI)},
		{c.Network.Port < 1 || c.Network.Port > 65535, fmt.Sprintf("--vxlan-port: found %d, expected 1 to 65535", c.Network.Port)},
		{c.Network.MTU != 0 && (c.Network.MTU < 1280 || c.Network.MTU > 65535), fmt.Sprintf("--mtu: found %d, expected 0 or 1280 to 65535", c.Network.MTU)},
		{c.Network.Device == "" || len(c.Network.Device) > 15 || strings.ContainsAny(c.Network.Device, "/ \t"), fmt.Sprintf("--vxlan-device: found %q, expected a device's name of at most 15 characters", c.Network.Device)},
		{c.Capacity.Unscheduled < 0 || c.Capacity.Unscheduled > deviceplugin.DevicesMax, fmt.Sprintf("--capacity-unscheduled: found %d, expected 0 to %d", c.Capacity.Unscheduled, deviceplugin.DevicesMax)},
		{c.Capacity.SlotOctets < 64 || c.Capacity.SlotOctets > 9216, fmt.Sprintf("--slot-octets: found %d, expected 64 to 9216", c.Capacity.SlotOctets)},
		{c.HealthGrace < 0 || c.HealthGrace > time.Hour, fmt.Sprintf("--health-grace: found %s, expected 0s to 1h", c.HealthGrace)},
		{c.ClientPolicy != "" && c.ClientPolicy != "kernel" && c.ClientPolicy != "strict", fmt.Sprintf("--client-policy: found %q, expected kernel or strict", c.ClientPolicy)},
		{c.ClientReceive != "" && c.ClientReceive != "kernel" && c.ClientReceive != "expect", fmt.Sprintf("--client-receive: found %q, expected kernel or expect", c.ClientReceive)},
		{c.RTDuration < time.Second || c.RTDuration > 10*time.Minute, fmt.Sprintf("--rt-check-duration: found %s, expected 1s to 10m", c.RTDuration)},
		{(c.TLSCert == "") != (c.TLSKey == ""), "--tls-cert, --tls-key: one is missing: give both, or none for a certificate that signs itself"},
		{!strings.Contains(c.Resource, "/") || strings.Count(c.Resource, "/") > 1, fmt.Sprintf("--resource: found %q, expected a name with a domain as in ktsn.io/tsn", c.Resource)},
	} {
		if rule.wrong {
			return fmt.Errorf("%s", rule.text)
		}
	}
	return nil
}
