// SPDX-License-Identifier: Apache-2.0

package nodeonce

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs the rest of the test in a network namespace of its thread.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // not unlocked: the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
}

// node is a tree as KTSN leaves it.
func node(t *testing.T) Config {
	t.Helper()
	root := t.TempDir()
	c := Config{VXLANDevice: "ktsn.1", Resource: "ktsn.io/tsn", LeaseDir: filepath.Join(root, "lib/cni/networks")}
	for path, into := range map[string]*string{"run/ktsn": &c.RunDir, "lib/ktsn": &c.LibDir, "cni/bin": &c.CNIBinDir, "lib/cni/ktsn": &c.CNIStateDir, "kubelet": &c.KubeletDir} {
		*into = filepath.Join(root, path)
	}
	for _, file := range []string{"run/ktsn/node.json", "lib/ktsn/lib/0.1.0-1/libktsn.so", "cni/bin/tsn-cni", "cni/bin/host-local", "lib/cni/networks/ktsn.io-node/lock",
		"lib/cni/networks/other/lock", "kubelet/device-plugins/kubelet.sock", "kubelet/device-plugins/ktsn.io-tsn.sock"} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func attach(t *testing.T, c Config) {
	t.Helper()
	folder := filepath.Join(c.CNIStateDir, "c1")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	state := `{"format_version":1,"container_id":"c1","if_name":"net1"}`
	if err := os.WriteFile(filepath.Join(folder, "net1.json"), []byte(state), 0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(paths ...string) []string {
	var found []string
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

func TestAProbeOfThisMachineChangesNothing(t *testing.T) {
	inNamespace(t)
	c := node(t)
	c.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}
	for _, line := range Probe(c) {
		if strings.HasPrefix(line, "fault:") {
			t.Error(line)
		}
	}
	if links, err := netlink.LinkList(); err != nil || len(links) != 1 {
		t.Errorf("the namespace has %d links: %v", len(links), err)
	}
}

func TestAProbeNamesFaults(t *testing.T) {
	inNamespace(t)
	c := node(t)
	taken := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.VXLANDevice}, PeerName: "peer0"}
	other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "peer1"}
	address, _ := netlink.ParseAddr("10.99.7.1/24")
	for _, err := range []error{netlink.LinkAdd(taken), netlink.LinkAdd(other), netlink.AddrAdd(other, address)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}
	for _, path := range []string{filepath.Join(c.CNIBinDir, "host-local"), filepath.Join(c.KubeletDir, "device-plugins/kubelet.sock")} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	found := strings.Join(Probe(c), "\n")
	for _, word := range []string{"note: " + c.CNIBinDir, "kubelet.sock is missing", "an address of uplink", "is no VXLAN device but veth"} {
		if !strings.Contains(found, word) {
			t.Errorf("no %q in %s", word, found)
		}
	}
}

// A disk that is full, on real file systems.
func TestAProbeNamesAFullDisk(t *testing.T) {
	inNamespace(t)
	for options, want := range map[string]string{
		"size=1m": "has 1 MiB left, 64 are needed: free some", "size=80m,nr_inodes=100": "more files, 256 are needed: free some", "size=80m": "",
	} {
		c := node(t)
		if err := unix.Mount("probe", c.CNIBinDir, "tmpfs", 0, options); err != nil {
			t.Fatal(err)
		}
		found := strings.Join(c.space(), "\n")
		if err := unix.Unmount(c.CNIBinDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if is := strings.Contains(found, "fault: the file system of "+c.CNIBinDir); is != (want != "") || !strings.Contains(found, want) {
			t.Errorf("%s: %q", options, found)
		}
	}
}

func TestRemovalLeavesWhatIsNotKTSNs(t *testing.T) {
	inNamespace(t)
	c := node(t)
	vxlan := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: c.VXLANDevice}, VxlanId: 1588, Port: 4789}
	if err := netlink.LinkAdd(vxlan); err != nil {
		t.Fatal(err)
	}
	if lines := Remove(context.Background(), c); len(lines) > 0 {
		t.Errorf("%q", lines)
	}
	gone := exists(c.RunDir, c.LibDir, c.CNIStateDir, filepath.Join(c.CNIBinDir, "tsn-cni"), filepath.Join(c.LeaseDir, leases),
		filepath.Join(c.KubeletDir, "device-plugins/ktsn.io-tsn.sock"))
	if len(gone) > 0 {
		t.Errorf("left: %q", gone)
	}
	if kept := exists(filepath.Join(c.CNIBinDir, "host-local"), filepath.Join(c.LeaseDir, "other/lock"), filepath.Join(c.KubeletDir, "device-plugins/kubelet.sock")); len(kept) != 3 {
		t.Errorf("%q", kept)
	}
	if _, err := netlink.LinkByName(c.VXLANDevice); err == nil {
		t.Error("the device is left")
	}
	if lines := Remove(context.Background(), c); len(lines) > 0 {
		t.Errorf("a second time: %q", lines)
	}
}

func TestAttachedPodsKeepWhatTheyNeed(t *testing.T) {
	inNamespace(t)
	Patience = 200 * time.Millisecond
	c := node(t)
	attach(t, c)
	taken := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.VXLANDevice}, PeerName: "peer0"}
	if err := netlink.LinkAdd(taken); err != nil {
		t.Fatal(err)
	}
	found := strings.Join(Remove(context.Background(), c), "\n")
	if !strings.Contains(found, "left: 1 interfaces of pods") || !strings.Contains(found, "left: ktsn.1: it is no vxlan but veth") {
		t.Error(found)
	}
	if kept := exists(c.RunDir, c.LibDir, filepath.Join(c.CNIBinDir, "tsn-cni"), filepath.Join(c.CNIStateDir, "c1/net1.json")); len(kept) != 4 {
		t.Errorf("%q", kept)
	}
	// A state that cannot be read may be a pod's, too.
	if err := os.WriteFile(filepath.Join(c.CNIStateDir, "c1/net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if found := strings.Join(Remove(context.Background(), c), "\n"); !strings.Contains(found, "broken state") || len(exists(c.CNIStateDir, c.LibDir)) != 2 {
		t.Error(found)
	}
	c.All, c.VXLANDevice = true, "none"
	if lines := Remove(context.Background(), c); len(lines) > 0 || len(exists(c.CNIStateDir, c.LibDir)) > 0 {
		t.Errorf("%q", lines)
	}
	if err := removeTree("/run"); err == nil {
		t.Fatal("/run would be removed")
	}
}

func TestLastWordsAreKept(t *testing.T) {
	message := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(message, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	if err := Say([]string{"note: a", strings.Repeat("b", MessageMax)}, &output, message); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(message)
	if err != nil || len(kept) != MessageMax || !strings.HasPrefix(string(kept), "note: a\nbb") || output.Len() < MessageMax {
		t.Errorf("%d octets kept, %v", len(kept), err)
	}
	if _, err := Parse("remove", []string{"--nonsense"}, os.Getenv, &output); err == nil {
		t.Error("a flag that is not there")
	}
}
