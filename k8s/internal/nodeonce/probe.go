// SPDX-License-Identifier: Apache-2.0

package nodeonce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ktsn.io/ktsn/k8s/internal/overlaynet"
)

// Probe looks at the node: a line for each fault, with what to do, and for each thing that is worse without.
func Probe(c Config) []string {
	lines := c.directories()
	lines = append(lines, c.space()...)
	lines = append(lines, c.addresses()...)
	lines = append(lines, c.device()...)
	done := make(chan []string, 1)
	// The thread ends with the goroutine, as it stays in the namespace that it makes.
	go func() {
		runtime.LockOSThread()
		done <- kernel()
	}()
	return append(lines, <-done...)
}

func (c Config) directories() (lines []string) {
	if _, err := os.Stat(filepath.Join(c.CNIBinDir, "host-local")); err != nil {
		lines = append(lines, fmt.Sprintf("note: %s has no host-local: networks with that IPAM fail; install the containernetworking plugins, "+
			"or name the node's directory (--set host.cniBinDir=DIR)", c.CNIBinDir))
	}
	socket := filepath.Join(c.KubeletDir, "device-plugins", "kubelet.sock")
	if _, err := os.Stat(socket); err != nil {
		lines = append(lines, fmt.Sprintf("fault: %s is missing: the kubelet takes no device plugins there; name its directory "+
			"(--set host.kubeletDir=DIR)", socket))
	}
	return lines
}

// What KTSN needs on each file system: tsn-cni beside its successor, versions of libktsn.so, states, and room for other programs' logs.
const (
	spaceMin  = 64 << 20
	inodesMin = 256
)

// space that is free where KTSN writes. /var/lib/ktsn has no mount here, as the probe would make it: it lies beside the kubelet's directory.
func (c Config) space() (lines []string) {
	for _, directory := range []string{c.CNIBinDir, filepath.Join(c.KubeletDir, "device-plugins")} {
		var found unix.Statfs_t
		if unix.Statfs(directory, &found) != nil {
			continue // it is missing: `directories` says so
		}
		const remedy = "free some on the node (`crictl rmi --prune`, `journalctl --vacuum-size=200M`)"
		if free := found.Bavail * uint64(found.Bsize); free < spaceMin {
			lines = append(lines, fmt.Sprintf("fault: the file system of %s has %d MiB left, %d are needed: %s", directory, free>>20, spaceMin>>20, remedy))
		}
		// A file system without a fixed number of inodes says 0 of 0.
		if found.Files > 0 && found.Ffree < inodesMin {
			lines = append(lines, fmt.Sprintf("fault: the file system of %s has room for %d more files, %d are needed: %s", directory, found.Ffree, inodesMin, remedy))
		}
	}
	return lines
}

// addresses that the node has and that the TSN network's range must not hold: also those that its Node object does not list.
func (c Config) addresses() []string {
	links, err := net.Interfaces()
	if err != nil {
		return []string{fmt.Sprintf("note: the node's addresses cannot be listed: %v", err)}
	}
	var claims []overlaynet.Claim
	for _, link := range links {
		if link.Name == c.VXLANDevice {
			continue
		}
		addresses, _ := link.Addrs()
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil {
				claims = append(claims, overlaynet.HostClaim("an address of "+link.Name, prefix.Addr()))
			}
		}
	}
	if err := overlaynet.CheckFree(c.CIDRs, claims); err != nil {
		return []string{"fault: " + err.Error()}
	}
	return nil
}

func (c Config) device() []string {
	link, err := netlink.LinkByName(c.VXLANDevice)
	if err != nil || link.Type() == "vxlan" {
		return nil
	}
	return []string{fmt.Sprintf("fault: %s is there and is no VXLAN device but %s: remove it, or name another (--set network.vxlan.device=NAME)",
		c.VXLANDevice, link.Type())}
}

// kernel tries what KTSN needs of the kernel, in a network namespace of this thread.
func kernel() (lines []string) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return []string{fmt.Sprintf("fault: no network namespace can be made (%v): SYS_ADMIN is refused; look at the cluster's security "+
			"policies", err)}
	}
	need := func(name, remedy string, err error) {
		if err != nil {
			lines = append(lines, fmt.Sprintf("fault: the kernel has no %s (%v): %s", name, err, remedy))
		}
	}
	vxlan := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "probe.1"}, VxlanId: 1588, Port: 4789}
	need("VXLAN", "load the module vxlan (`modprobe vxlan`), and at each boot (/etc/modules-load.d)", netlink.LinkAdd(vxlan))
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"}
	need("veth", "load the module veth", netlink.LinkAdd(veth))
	need("packet sockets", "load the module af_packet", opened(unix.AF_PACKET, unix.SOCK_RAW))
	if err := opened(unix.AF_XDP, unix.SOCK_RAW); err != nil {
		lines = append(lines, fmt.Sprintf("note: the kernel has no AF_XDP (%v): frames leave by packet sockets", err))
	}
	attributes := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, attributes, 0); err != nil {
		lines = append(lines, fmt.Sprintf("note: SCHED_FIFO is refused (%v): frames leave late under load, and are counted as overrun "+
			"(docs/guide/kubernetes.md, Nodes and the controller)", err))
	}
	return lines
}

func opened(family, kind int) error {
	socket, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(socket)
}
