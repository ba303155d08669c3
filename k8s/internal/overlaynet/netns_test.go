// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

var spaces atomic.Int32

// space is a network namespace that goes with the test.
type space struct {
	t      *testing.T
	name   string
	handle netns.NsHandle
}

func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests need root: they make network namespaces")
	}
	name := fmt.Sprintf("kton%d-%d", os.Getpid(), spaces.Add(1))
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	handle, err := netns.GetFromName(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = handle.Close() })
	s := &space{t, name, handle}
	s.ip("link set lo up")
	return s
}

// ip runs one ip command inside.
func (s *space) ip(command string) string {
	s.t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", s.name}, strings.Fields(command)...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ip -n %s %s: %v: %s", s.name, command, err, out)
	}
	return string(out)
}

func (s *space) bridge(command string) string {
	s.t.Helper()
	out, err := exec.Command("bridge", append([]string{"-n", s.name}, strings.Fields(command)...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("bridge -n %s %s: %v: %s", s.name, command, err, out)
	}
	return string(out)
}

// sysctl writes below /proc/sys/net of the namespace.
func (s *space) sysctl(name, value string) error {
	var err error
	s.inside(func() { err = os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644) })
	return err
}

// inside runs on a thread in the namespace; sockets made there stay there.
func (s *space) inside(act func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(s.handle); err != nil {
			s.t.Errorf("enter %s: %v", s.name, err)
			return
		}
		act()
	}()
	<-done
}

// node is a namespace with an uplink and a Network.
type node struct {
	*space
	network *Network
	own     Own
}

// twoNodes joins two by a cable: 192.0.2.1, .2 and 2001:db8::1, ::2.
func twoNodes(t *testing.T, config Config, underlayIPv6 bool) (a, b *node) {
	t.Helper()
	first, second := newSpace(t), newSpace(t)
	first.ip("link add up0 type veth peer name up0 netns " + second.name)
	nodes := [2]*node{}
	for index, s := range []*space{first, second} {
		s.ip(fmt.Sprintf("addr add 192.0.2.%d/24 dev up0", index+1))
		s.ip(fmt.Sprintf("addr add 2001:db8::%d/64 dev up0 nodad", index+1))
		s.ip("link set up0 up")
		if err := s.sysctl("ipv6/conf/all/forwarding", "1"); err != nil {
			t.Fatal(err)
		}
		network, err := NewAt(config, s.handle, s.sysctl)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		address := fmt.Sprintf("192.0.2.%d", index+1)
		if underlayIPv6 {
			address = fmt.Sprintf("2001:db8::%d", index+1)
		}
		uplink, err := network.FindUplink("", netip.MustParseAddr(address))
		if err != nil {
			t.Fatal(err)
		}
		nodes[index] = &node{s, network, Own{
			MAC: MACOf(s.name, config.VNI), Uplink: uplink,
			Prefixes: prefixes(fmt.Sprintf("10.99.%d.0/24", index+1), fmt.Sprintf("fd99:0:0:%d::/64", index+1)),
		}}
	}
	return nodes[0], nodes[1]
}

// asMember is what the other node reads of this one's annotation.
func (n *node) asMember(t *testing.T, vtep VTEP) Member {
	t.Helper()
	member, err := ParseVTEP(vtep.Annotation())
	if err != nil {
		t.Fatal(err)
	}
	member.Node = n.name
	return member
}

// reconcile fails the test where it fails.
func (n *node) reconcile(t *testing.T, others ...Member) (VTEP, []string) {
	t.Helper()
	vtep, changes, err := n.network.Reconcile(n.own, others)
	if err != nil {
		t.Fatal(err)
	}
	return vtep, changes
}

// connect makes both nodes know each other.
func connect(t *testing.T, a, b *node) (ofA, ofB Member) {
	t.Helper()
	vtepA, _ := a.reconcile(t)
	vtepB, _ := b.reconcile(t)
	ofA, ofB = a.asMember(t, vtepA), b.asMember(t, vtepB)
	a.reconcile(t, ofB)
	b.reconcile(t, ofA)
	return ofA, ofB
}

// talks sends a datagram from one namespace to an address in another one and waits for it.
func talks(t *testing.T, from, to *space, address string) error {
	t.Helper()
	var server net.PacketConn
	var client net.Conn
	var err error
	to.inside(func() { server, err = net.ListenPacket("udp", net.JoinHostPort(address, "0")) })
	if err != nil {
		return err
	}
	defer server.Close()
	from.inside(func() { client, err = net.Dial("udp", server.LocalAddr().String()) })
	if err != nil {
		return err
	}
	defer client.Close()
	buffer := make([]byte, 64)
	// The first ones may meet an uplink whose neighbour is being resolved.
	for attempt := range 20 {
		text := fmt.Appendf(nil, "hello %d", attempt)
		if _, err = client.Write(text); err != nil {
			return err
		}
		_ = server.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		var count int
		var sender net.Addr
		if count, sender, err = server.ReadFrom(buffer); err == nil {
			if !bytes.HasPrefix(buffer[:count], []byte("hello")) {
				return fmt.Errorf("received %q", buffer[:count])
			}
			if _, err = server.WriteTo([]byte("welcome"), sender); err != nil {
				return err
			}
			_ = client.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = client.Read(buffer)
			return err
		}
	}
	return err
}
