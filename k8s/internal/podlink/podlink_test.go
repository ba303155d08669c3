// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// namespace makes one that goes with the test.
func namespace(t *testing.T, name string) string {
	t.Helper()
	name = fmt.Sprintf("ktsnf%d-%s", os.Getpid(), name)
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	return "/run/netns/" + name
}

// A link as ADD makes it: Check finds everything, Delete leaves nothing.
func TestMakeCheckDelete(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	node, pod := namespace(t, "node"), namespace(t, "pod")
	prefix := func(text string) *net.IPNet {
		_, found, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	spec := Spec{
		Netns: pod, Interface: "tsn0", Host: "ktsnhost", MTU: 1400, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 7},
	}
	addresses, prefixes := []net.IP{net.ParseIP("10.99.1.7"), net.ParseIP("fd99::7")}, []*net.IPNet{prefix("10.99.0.0/16"), prefix("fd99::/48")}
	expected := Expected{Netns: pod, Interface: "tsn0", Host: "ktsnhost", MAC: spec.MAC, Addresses: addresses, Reachable: addresses}
	for _, prefix := range prefixes {
		expected.Routes = append(expected.Routes, netlink.Route{Dst: prefix, Gw: NextHop(prefix.IP)})
	}
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		defer close(errs)
		handle, err := netns.GetFromPath(node)
		if err == nil {
			err = netns.Set(handle)
		}
		if err != nil {
			errs <- err
			return
		}
		link, err := Make(spec)
		if err == nil && (link.MTU != 1400 || link.PodMAC.String() != "02:00:00:00:00:07" || MTUOf("ktsnhost") != 1400) {
			err = fmt.Errorf("%+v", link)
		}
		if err == nil {
			defer link.Close()
			err = errors.Join(link.Configure(addresses, prefixes), Check(expected))
		}
		if err != nil {
			errs <- err
			return
		}
		err = errors.Join(Unroute("ktsnhost"), Unroute("ktsnhost"), Unroute("ktsnnothing"), Check(expected))
		for _, address := range addresses {
			if missing := "ktsnhost has no route to " + HostAddress(address).String(); err == nil || !strings.Contains(err.Error(), missing) {
				errs <- fmt.Errorf("%v, expected %s", err, missing)
				return
			}
		}
		other := spec
		other.Host = "ktsnother"
		if _, err := Make(other); !errors.Is(err, ErrExists) {
			errs <- fmt.Errorf("a second link of the name: %v", err)
			return
		}
		if err := errors.Join(Delete("ktsnhost"), Delete("ktsnhost")); err != nil {
			errs <- err
			return
		}
		if CheckForeign(pod, "tsn0") == nil || MTUOf("ktsnhost") != 0 || MTUOf("ktsnother") != 0 {
			errs <- errors.New("the link is left")
		}
	}()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}
