// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/eventually"
)

// Types of DHCP messages (RFC 2132, 9.6).
const (
	dhcpDiscover, dhcpOffer, dhcpRequest, dhcpAck, dhcpRelease = 1, 2, 3, 5, 7
	dhcpOptions                                                = 240 // octets before the options
)

// lessor is a DHCP server with one address, on one host end. It notes the types of the messages that came.
type lessor struct {
	mutex sync.Mutex
	came  []byte
}

func (l *lessor) has(kind byte) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return slices.Contains(l.came, kind)
}

// serve answers on the device, which it waits for.
func (l *lessor) serve(t *testing.T, node, device string, address net.IP) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		in(t, node, func() {
			config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
				failed := raw.Control(func(fd uintptr) {
					if err = unix.BindToDevice(int(fd), device); err == nil {
						err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
					}
				})
				if failed != nil {
					return failed
				}
				return err
			}}
			for ctx.Err() == nil {
				socket, err := config.ListenPacket(ctx, "udp4", ":67")
				if err != nil {
					time.Sleep(time.Millisecond) // the interface is not there yet
					continue
				}
				context.AfterFunc(ctx, func() { socket.Close() })
				l.answer(socket, address)
			}
		})
	}()
	t.Cleanup(func() { stop(); group.Wait() })
}

func (l *lessor) answer(socket net.PacketConn, address net.IP) {
	buffer := make([]byte, 2048)
	for {
		length, _, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if length <= dhcpOptions {
			continue
		}
		kind := byte(0)
		for at := dhcpOptions; at+2 < length && buffer[at] != 255; at += 2 + int(buffer[at+1]) {
			if buffer[at] == 53 {
				kind = buffer[at+2]
			}
		}
		l.mutex.Lock()
		l.came = append(l.came, kind)
		l.mutex.Unlock()
		reply := map[byte]byte{dhcpDiscover: dhcpOffer, dhcpRequest: dhcpAck}[kind]
		if reply == 0 {
			continue
		}
		message := slices.Clone(buffer[:dhcpOptions])
		message[0] = 2 // BOOTREPLY
		copy(message[16:20], address.To4())
		message = append(message, 53, 1, reply, 54, 4, 169, 254, 1, 1, 1, 4, 255, 255, 255, 0, 51, 4)
		message = append(binary.BigEndian.AppendUint32(message, 3600), 255)
		socket.WriteTo(message, &net.UDPAddr{IP: net.IPv4bcast, Port: 68})
	}
}

// dhcpDaemon starts the daemon of the plugin dhcp on the node, and returns the plugin's configuration.
func (w *world) dhcpDaemon() map[string]any {
	w.t.Helper()
	socket := filepath.Join(w.t.TempDir(), "dhcp.sock")
	daemon := exec.Command(filepath.Join(debianPlugins, "dhcp"), "daemon", "-socketpath", socket)
	var err error
	in(w.t, w.node, func() { err = daemon.Start() })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
	eventually.Holds(w.t, "the daemon of dhcp listens", func() bool { _, err := os.Stat(socket); return err == nil })
	return map[string]any{"type": "dhcp", "daemonSocketPath": socket}
}

// The plugin dhcp asks over the interface, and gives the address back over it.
func TestIPAMByDHCPAsksOverTheLink(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	server := &lessor{}
	server.serve(t, w.node, cnistate.HostInterface("c1", "net1"), net.IPv4(10, 99, 1, 50))
	fields := map[string]any{"cniVersion": "1.0.0", "ipam": w.dhcpDaemon()}
	c := call{verb: "ADD", container: "c1", netns: path(pod), ifName: "net1", stdin: w.conf(fields)}
	result := parsed(t, w.must(c))
	if len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.99.1.50/32" {
		t.Errorf("%+v", result)
	}
	if given := string(w.attachments()["c1/net1"].Addresses); given != `["10.99.1.50"]` {
		t.Errorf("given: %q", given)
	}
	reach(t, w.node, pod, "10.99.1.50")
	fields["prevResult"] = result
	w.must(call{verb: "CHECK", container: "c1", netns: path(pod), ifName: "net1", stdin: w.conf(fields)})
	c.verb = "DEL"
	w.must(c)
	w.nothingLeft()
	if !server.has(dhcpRelease) {
		t.Errorf("messages %v: the address was not given back", server.came)
	}
}
