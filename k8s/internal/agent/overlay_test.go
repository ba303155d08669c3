// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ktsn.io/ktsn/k8s/internal/kube/kinds"
	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

var spaces atomic.Int32

// inSpace makes a network in a namespace of its own, with up0 = 192.0.2.1.
func inSpace(t *testing.T) (*overlaynet.Network, func(command string) string) {
	t.Helper()
	name := fmt.Sprintf("ktag%d-%d", os.Getpid(), spaces.Add(1))
	ip := func(command string) string {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
		return string(out)
	}
	ip("netns add " + name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	ip("-n " + name + " link add up0 type veth peer name up1")
	ip("-n " + name + " addr add 192.0.2.1/24 dev up0")
	ip("-n " + name + " link set up0 up")
	handle, err := netns.GetFromName(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = handle.Close() })
	sysctl := func(name, value string) error {
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if err := netns.Set(handle); err != nil {
				done <- err
				return
			}
			done <- os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
		}()
		return <-done
	}
	network, err := overlaynet.NewAt(overlaynet.Config{Device: "ktsn.1", VNI: 1588, Port: 4789}, handle, sysctl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return network, func(command string) string { return ip("-n " + name + " " + command) }
}

func vtepOf(name, address string, prefixes ...string) string {
	return overlaynet.VTEP{
		Address: address, MAC: overlaynet.MACOf(name, 1588).String(), VNI: 1588, Port: 4789, MTU: 1450, Prefixes: prefixes,
	}.Annotation()
}

func given(prefixes, vtep string) map[string]string {
	return map[string]string{overlaynet.AnnotationPrefixes: prefixes, overlaynet.AnnotationVTEP: vtep}
}

// A node that was broken into says what it likes of itself; it is the oldest of all.
func TestNoNodeTakesWhatIsNotItsOwn(t *testing.T) {
	network, _ := inSpace(t)
	b := newBench(t, nil, network)
	own := overlaynet.Own{
		MAC: overlaynet.MACOf("kn1", 1588), Prefixes: []netip.Prefix{netip.MustParsePrefix("10.99.1.0/24")},
		Uplink: overlaynet.Uplink{Name: "up0", Address: netip.MustParseAddr("192.0.2.1")},
	}
	me := node("kn1", "192.0.2.1", given("10.99.1.0/24", ""), time.Minute)
	honest := node("kn2", "192.0.2.2", given("10.99.2.0/24", vtepOf("kn2", "192.0.2.2", "10.99.2.0/24")), time.Hour)
	for what, evil := range map[string]*corev1.Node{
		"everything":        node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn9", "192.0.2.9", "10.99.0.0/16")), 9*time.Hour),
		"everything, given": node("kn9", "192.0.2.9", given("10.99.0.0/16", vtepOf("kn9", "192.0.2.9", "10.99.0.0/16")), 9*time.Hour),
		"another's":         node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn9", "192.0.2.9", "10.99.2.0/24", "10.99.1.0/24")), 9*time.Hour),
		"another's address": node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn9", "192.0.2.2", "10.99.9.0/24")), 9*time.Hour),
		"ours, given":       node("kn9", "192.0.2.9", given("10.99.1.0/24", vtepOf("kn9", "192.0.2.9", "10.99.1.0/24")), 9*time.Hour),
		"our address":       node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn9", "192.0.2.1", "10.99.9.0/24")), 9*time.Hour),
		"another's MAC":     node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn2", "192.0.2.9", "10.99.9.0/24")), 9*time.Hour),
		"our MAC address":   node("kn9", "192.0.2.9", given("10.99.9.0/24", vtepOf("kn1", "192.0.2.9", "10.99.9.0/24")), 9*time.Hour),
	} {
		others, prefixes, conflicts := b.members([]*kinds.Node{listed(evil), listed(me), listed(honest)}, own)
		if len(prefixes) != 1 || prefixes[0] != own.Prefixes[0] || len(conflicts) == 0 {
			t.Errorf("%s: this node has %v, conflicts %v", what, prefixes, conflicts)
		}
		for _, other := range others {
			if other.Node == "kn9" && len(other.Prefixes) != 0 && other.Prefixes[0].String() != "10.99.9.0/24" {
				t.Errorf("%s: taken: %v", what, other.Prefixes)
			}
			if other.Node == "kn2" && len(other.Prefixes) != 1 {
				t.Errorf("%s: taken from kn2", what)
			}
		}
	}
}

func annotationOf(kube *fake.Clientset, name, annotation string) string {
	found, err := kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return found.Annotations[annotation]
}

func TestTheOverlayFollowsTheNodes(t *testing.T) {
	network, ip := inSpace(t)
	b := newBench(t, nil, network,
		node("kn1", "192.0.2.1", nil, 3*time.Hour),
		node("kn2", "192.0.2.2", given("10.99.2.0/24", vtepOf("kn2", "192.0.2.2", "10.99.2.0/24")), 2*time.Hour),
		node("kn3", "192.0.2.3", given("10.99.2.0/25,10.99.3.0/24", vtepOf("kn3", "192.0.2.3", "10.99.2.0/25", "10.99.3.0/24", "10.0.0.0/8")), time.Hour),
		node("kn4", "192.0.2.4", map[string]string{overlaynet.AnnotationVTEP: "nonsense"}, time.Hour),
		node("kn5", "192.0.2.5", nil, time.Hour),
	)
	b.start()
	b.eventually("a node without prefixes says what to do", func() bool {
		return strings.Contains(b.node().Reason, "kubectl annotate node kn1 ktsn.io/tsn-prefixes=PREFIX") && !b.node().Ready
	})
	b.change("kn1", overlaynet.AnnotationPrefixes, "10.99.1.0/24")
	b.eventually("ready", func() bool { return b.node().Ready })
	want := vtepOf("kn1", "192.0.2.1", "10.99.1.0/24")
	if got := annotationOf(b.kube, "kn1", overlaynet.AnnotationVTEP); got != want {
		t.Errorf("annotation %s", got)
	}
	if file := b.node(); file.MTU != 1450 || file.Uplink != "up0" || !slices.Equal(file.Prefixes, []string{"10.99.1.0/24"}) {
		t.Errorf("%+v", file)
	}
	routes := func() []string { return strings.Split(strings.TrimSpace(ip("route show dev ktsn.1")), "\n") }
	b.eventually("both nodes' routes", func() bool { return len(routes()) == 2 })
	text := strings.Join(routes(), "\n")
	if !strings.Contains(text, "10.99.2.0/24") || !strings.Contains(text, "10.99.3.0/24") {
		t.Errorf("%s: the older node's prefix, and the younger one's other", text)
	}
	b.eventually("conflicts in the metrics", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_overlay_conflicts 3") })
	if !strings.Contains(b.get("/metrics"), "ktsn_overlay_nodes 2") {
		t.Error("nodes in the metrics")
	}
	if err := b.kube.CoreV1().Nodes().Delete(context.Background(), "kn2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("the removed node's prefix goes to who else wanted it", func() bool {
		text := strings.Join(routes(), "\n")
		return strings.Contains(text, "10.99.2.0/25") && !strings.Contains(text, "10.99.2.0/24")
	})
	// Made later, with an address of the other family: it is reported, and no route leads to where nothing would arrive.
	six := node("kn6", "2001:db8::6", given("10.99.6.0/24", vtepOf("kn6", "2001:db8::6", "10.99.6.0/24")), time.Minute)
	if _, err := b.kube.CoreV1().Nodes().Create(context.Background(), six, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("another family's end is told", func() bool { return strings.Contains(b.get("/metrics"), "ktsn_overlay_conflicts 3") })
	if text := strings.Join(routes(), "\n"); strings.Contains(text, "10.99.6.0/24") {
		t.Errorf("routes: %s", text)
	}
	b.change("kn1", overlaynet.AnnotationPrefixes, "10.99.1.7/24")
	b.eventually("a wrong prefix is told", func() bool { return strings.Contains(b.node().Reason, "expected the network itself: 10.99.1.0/24") })
	b.change("kn1", overlaynet.AnnotationPrefixes, "10.98.1.0/24")
	b.eventually("a prefix outside is told", func() bool { return strings.Contains(b.node().Reason, "none of the prefixes") })
}

// The default network's pods are in the TSN network's range: their packets would be ours.
func TestARangeOfTheDefaultNetworkIsRefused(t *testing.T) {
	network, ip := inSpace(t)
	me := node("kn1", "192.0.2.1", given("10.99.1.0/24", ""), time.Hour)
	me.Spec.PodCIDRs = []string{"10.99.128.0/24"}
	b := newBench(t, nil, network, me)
	b.start()
	b.eventually("refused with the reason", func() bool {
		return strings.Contains(b.node().Reason, "overlaps 10.99.128.0/24 (pods of node kn1 on the default network)") && !b.node().Ready
	})
	if links := ip("link show"); strings.Contains(links, "ktsn.1") {
		t.Errorf("the device was made: %s", links)
	}
}

func (b *bench) change(name, annotation, text string) {
	b.t.Helper()
	found, err := b.kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	found = found.DeepCopy()
	if found.Annotations == nil {
		found.Annotations = map[string]string{}
	}
	found.Annotations[annotation] = text
	if _, err := b.kube.CoreV1().Nodes().Update(context.Background(), found, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func TestOwnPartSaysWhatIsMissing(t *testing.T) {
	network, _ := inSpace(t)
	b := newBench(t, nil, network)
	noAddress := listed(node("kn1", "", nil, 0))
	noAddress.Status.Addresses = []kinds.NodeAddress{{Type: kinds.NodeHostName, Address: "kn1"}}
	if _, err := b.own(noAddress); err == nil || !strings.Contains(err.Error(), "name the device with --uplink") {
		t.Errorf("%v", err)
	}
	if _, err := b.own(listed(node("kn1", "192.0.2.77", nil, 0))); err == nil || !strings.Contains(err.Error(), "no device has the node's address") {
		t.Errorf("%v", err)
	}
	b.config.Uplink = "up0"
	if own, err := b.own(noAddress); err != nil || own.Uplink.Name != "up0" {
		t.Errorf("%+v, %v", own, err)
	}
}

func TestPartsAreListed(t *testing.T) {
	p := newParts("b", "a")
	if p.String() != "a: not started yet\nb: not started yet" {
		t.Error(p.String())
	}
	if !p.set("a", nil) || p.set("a", nil) || !p.set("b", errors.New("x\ny")) || p.set("b", errors.New("x\ny")) {
		t.Error("changes")
	}
	if p.String() != "b: x; y" || p.get("a") != nil {
		t.Error(p.String())
	}
}
