// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func config() Config { return Config{Device: "ktsn.1", VNI: 1588, Port: 4789} }

func TestDatagramsCrossTheNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		ipv6 bool
		mtu  int
	}{"IPv4 underlay": {false, 1450}, "IPv6 underlay": {true, 1430}} {
		t.Run(name, func(t *testing.T) {
			a, b := twoNodes(t, config(), c.ipv6)
			connect(t, a, b)
			for _, address := range []string{"10.99.2.0", "fd99:0:0:2::"} {
				if err := talks(t, a.space, b.space, address); err != nil {
					t.Errorf("to %s: %v", address, err)
				}
			}
			// It went through the tunnel, not by some other way.
			link, err := b.network.handle.LinkByName("ktsn.1")
			if err != nil || link.Attrs().Statistics.RxPackets < 2 {
				t.Errorf("nothing came by the device: %v, %v", link, err)
			}
			if link := a.ip("link show ktsn.1"); !strings.Contains(link, fmt.Sprintf("mtu %d", c.mtu)) {
				t.Errorf("MTU: %s", link)
			}
		})
	}
}

// A pod behind the other node, with a route to its address alone, as tsn-cni makes it.
func TestDatagramsReachAPod(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	connect(t, a, b)
	pod := newSpace(t)
	b.ip("link add kt0 type veth peer name eth0 netns " + pod.name)
	b.ip("link set kt0 up")
	b.ip("route add 10.99.2.7/32 dev kt0")
	b.ip("addr add 169.254.1.1/32 dev kt0")
	if err := b.sysctl("ipv4/conf/kt0/forwarding", "1"); err != nil {
		t.Fatal(err)
	}
	pod.ip("addr add 10.99.2.7/32 dev eth0")
	pod.ip("link set eth0 up")
	pod.ip("route add default via 169.254.1.1 dev eth0 onlink")
	if err := talks(t, a.space, pod, "10.99.2.7"); err != nil {
		t.Errorf("to the pod: %v", err)
	}
	if err := talks(t, pod, a.space, "10.99.1.0"); err != nil {
		t.Errorf("from the pod: %v", err)
	}
}

func TestASecondLookChangesNothing(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	if _, changes := a.reconcile(t, ofB); len(changes) != 0 {
		t.Errorf("changed again: %v", changes)
	}
}

func TestOutsideChangesAreMended(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	for _, c := range []struct {
		what    string
		damage  func()
		changes string
	}{
		{"route removed", func() { a.ip("route del 10.99.2.0/24") }, "added route 10.99.2.0/24"},
		{"IPv6 route removed", func() { a.ip("-6 route del fd99:0:0:2::/64") }, "added route fd99:0:0:2::/64"},
		{"route to elsewhere", func() { a.ip("route replace 10.99.2.0/24 via 10.99.2.9 dev ktsn.1 onlink") }, "removed route 10.99.2.0/24,added route 10.99.2.0/24"},
		{"foreign route by the device", func() { a.ip("route add 10.99.7.0/24 via 10.99.7.0 dev ktsn.1 onlink") }, "removed route 10.99.7.0/24"},
		{"neighbour removed", func() { a.ip("neigh del 10.99.2.0 dev ktsn.1") }, "set neighbour 10.99.2.0"},
		{"neighbour changed", func() { a.ip("neigh replace 10.99.2.0 lladdr 02:00:00:00:00:09 dev ktsn.1 nud permanent") }, "set neighbour 10.99.2.0"},
		{"foreign neighbour", func() { a.ip("neigh add 10.99.9.9 lladdr 02:00:00:00:00:09 dev ktsn.1 nud permanent") }, "removed neighbour 10.99.9.9"},
		{"forwarding removed", func() { a.bridge("fdb del " + ofB.MAC.String() + " dev ktsn.1 dst 192.0.2.2") }, "set neighbour " + ofB.MAC.String()},
		{"foreign forwarding", func() { a.bridge("fdb add 02:00:00:00:00:09 dev ktsn.1 dst 192.0.2.9 self permanent") }, "removed neighbour 02:00:00:00:00:09"},
		{"unreachable removed", func() { a.ip("route del unreachable 10.99.1.0/24 proto 158") }, "added unreachable 10.99.1.0/24"},
		{"address removed", func() { a.ip("addr del 10.99.1.0/32 dev ktsn.1") }, "added address 10.99.1.0/32,set neighbour 10.99.2.0,added route 10.99.2.0/24"}, // the kernel takes them along
		{"address added", func() { a.ip("addr add 10.99.1.9/32 dev ktsn.1") }, "removed address 10.99.1.9/32"},
		{"MTU", func() { a.ip("link set ktsn.1 mtu 1400") }, "ktsn.1: MTU 1450"},
		{"MAC address", func() { a.ip("link set ktsn.1 address 02:00:00:00:00:77") }, "ktsn.1: MAC address " + a.own.MAC.String() + ",set neighbour 10.99.2.0,set neighbour fd99:0:0:2::"},
	} {
		c.damage()
		_, changes := a.reconcile(t, ofB)
		if got := strings.Join(changes, ","); got != c.changes {
			t.Errorf("%s: changed %q, expected %q", c.what, got, c.changes)
		}
		if err := talks(t, a.space, b.space, "10.99.2.0"); err != nil {
			t.Errorf("%s: afterwards: %v", c.what, err)
		}
	}
}

func TestTheDeviceIsMadeAnewWhenWrongOrGone(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	mine := "link add ktsn.1 address " + a.own.MAC.String() + " "
	for what, damage := range map[string]func(){
		"gone": func() { a.ip("link del ktsn.1") },
		"down": func() { a.ip("link set ktsn.1 down") },
		"another VNI": func() {
			a.ip("link del ktsn.1")
			a.ip(mine + "type vxlan id 9 dstport 4789 local 192.0.2.1 dev up0")
		},
		"another port": func() {
			a.ip("link del ktsn.1")
			a.ip(mine + "type vxlan id 1588 dstport 8472 local 192.0.2.1 dev up0 nolearning")
		},
		"no uplink": func() {
			a.ip("link del ktsn.1")
			a.ip(mine + "type vxlan id 1588 dstport 4789 local 192.0.2.1 nolearning")
		},
		"external": func() { a.ip("link del ktsn.1"); a.ip(mine + "type vxlan dstport 4789 external") },
		"another address": func() {
			a.ip("link del ktsn.1")
			a.ip(mine + "type vxlan id 1588 dstport 4789 local 192.0.2.9 dev up0 nolearning")
		},
	} {
		damage()
		before := a.own.MAC
		a.reconcile(t, ofB)
		if _, changes := a.reconcile(t, ofB); len(changes) != 0 {
			t.Errorf("%s: changed again: %v", what, changes)
		}
		if !strings.Contains(a.ip("link show ktsn.1"), before.String()) {
			t.Errorf("%s: the MAC address is not what the others know", what)
		}
		if err := talks(t, a.space, b.space, "10.99.2.0"); err != nil {
			t.Errorf("%s: afterwards: %v", what, err)
		}
	}
}

func TestANodeThatLeavesTakesItsEntriesAlong(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	_, changes := a.reconcile(t)
	if len(changes) != 5 { // two routes, two stations, one tunnel end
		t.Errorf("changes: %v", changes)
	}
	left := a.ip("route show dev ktsn.1") + a.ip("-6 neigh show dev ktsn.1 nud permanent") + a.ip("neigh show dev ktsn.1") +
		a.bridge("fdb show dev ktsn.1")
	if strings.Contains(left, "10.99.2") || strings.Contains(left, "fd99:0:0:2") || strings.Contains(left, ofB.MAC.String()) {
		t.Errorf("left: %s", left)
	}
	if !strings.Contains(a.ip("route show type unreachable"), "10.99.1.0/24") {
		t.Error("our own prefix is not kept from leaving by the default route")
	}
	// A prefix that moves to another node, and our own that changes.
	moved := ofB
	moved.Prefixes = prefixes("10.99.8.0/24")
	a.own.Prefixes = prefixes("10.99.3.0/24")
	a.reconcile(t, moved)
	routes := a.ip("route show")
	if !strings.Contains(routes, "10.99.8.0/24 via 10.99.8.0 dev ktsn.1") || strings.Contains(routes, "10.99.1.0/24") ||
		!strings.Contains(routes, "unreachable 10.99.3.0/24") {
		t.Errorf("%s", routes)
	}
}

func TestWhatCannotBeMadeSaysWhatToDo(t *testing.T) {
	a, _ := twoNodes(t, config(), false)
	a.ip("link add ktsn.1 type bridge")
	if _, _, err := a.network.Reconcile(a.own, nil); err == nil || !strings.Contains(err.Error(), "no VXLAN device but bridge") {
		t.Errorf("a bridge in its place: %v", err)
	}
	a.ip("link del ktsn.1")
	a.ip("link add ktsn.1 type vxlan id 7 dstport 8472 local 192.0.2.1")
	if _, _, err := a.network.Reconcile(a.own, nil); err == nil || !strings.Contains(err.Error(), "is not ours") {
		t.Errorf("somebody else's VXLAN device: %v", err)
	}
	a.ip("link del ktsn.1")
	a.ip("link add other type vxlan id 1588 dstport 4789 local 192.0.2.1")
	if _, _, err := a.network.Reconcile(a.own, nil); err == nil || !strings.Contains(err.Error(), "set --vxlan-vni or --vxlan-port") {
		t.Errorf("the VNI is in use: %v", err)
	}
}

func TestWithoutForwardingTheRestIsDone(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	a.ip("link del ktsn.1")
	a.network.sysctl = func(string, string) error { return errors.New("read-only file system") }
	vtep, _, err := a.network.Reconcile(a.own, []Member{ofB})
	if err == nil || !strings.Contains(err.Error(), "set net.ipv4.ip_forward=1") || vtep.MAC != a.own.MAC.String() {
		t.Errorf("%+v, %v", vtep, err)
	}
	if err := talks(t, a.space, b.space, "10.99.2.0"); err != nil {
		t.Error(err)
	}
}

func TestRoutesOfOthersStay(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	a.ip("route add 10.99.2.0/24 via 192.0.2.9 dev up0")
	vtepA, _ := a.reconcile(t)
	vtepB, _ := b.reconcile(t)
	b.reconcile(t, a.asMember(t, vtepA))
	_, _, err := a.network.Reconcile(a.own, []Member{b.asMember(t, vtepB)})
	if err == nil || !strings.Contains(err.Error(), "meets another network") {
		t.Errorf("%v", err)
	}
	if routes := a.ip("route show 10.99.2.0/24"); !strings.Contains(routes, "via 192.0.2.9 dev up0") || strings.Contains(routes, "ktsn.1") {
		t.Errorf("%s", routes)
	}
	if routes := a.ip("-6 route show dev ktsn.1"); !strings.Contains(routes, "fd99:0:0:2::/64") {
		t.Errorf("the others are kept from theirs: %s", routes)
	}
}

func TestFindUplink(t *testing.T) {
	a, _ := twoNodes(t, config(), false)
	for _, c := range []struct {
		name, node, address, fault string
	}{
		{"", "192.0.2.1", "192.0.2.1", ""},
		{"", "2001:db8::1", "2001:db8::1", ""},
		{"up0", "2001:db8::1", "2001:db8::1", ""},
		{"up0", "198.51.100.1", "192.0.2.1", ""},
		{"up0", "2001:db8:1::1", "2001:db8::1", ""},
		{"", "198.51.100.1", "", "no device has the node's address"},
		{"eth7", "192.0.2.1", "", "no such device"},
		{"lo", "192.0.2.1", "", "no global address"},
	} {
		uplink, err := a.network.FindUplink(c.name, netip.MustParseAddr(c.node))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%+v: %v", c, err)
			}
		} else if err != nil || uplink.Address.String() != c.address || uplink.Name != "up0" || uplink.MTU != 1500 {
			t.Errorf("%+v: %+v, %v", c, uplink, err)
		}
	}
}

func TestWatchSeesChangesOfOthers(t *testing.T) {
	a, b := twoNodes(t, config(), false)
	_, ofB := connect(t, a, b)
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, &a.handle, func() {
			select {
			case signals <- struct{}{}:
			default:
			}
		})
	}()
	wait := func(what string) {
		t.Helper()
		select {
		case <-signals:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: nobody was told", what)
		}
		Settle(ctx, signals, 20*time.Millisecond)
	}
	// The watch is there when a change of ours is seen.
	for started := false; !started; {
		a.ip("link set lo down")
		a.ip("link set lo up")
		select {
		case <-signals:
			started = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	Settle(ctx, signals, 50*time.Millisecond)
	for what, damage := range map[string]func(){
		"route":   func() { a.ip("route del 10.99.2.0/24") },
		"station": func() { a.ip("neigh del 10.99.2.0 dev ktsn.1") },
		"forward": func() { a.bridge("fdb del " + ofB.MAC.String() + " dev ktsn.1 dst 192.0.2.2") },
		"address": func() { a.ip("addr del 10.99.1.0/32 dev ktsn.1") },
		"link":    func() { a.ip("link del ktsn.1") },
	} {
		damage()
		wait(what)
		a.reconcile(t, ofB)
		wait(what + " mended")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}
