// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
)

// prepare sets the pod end's switches for the families of these next hops. It switches IPv6 on, which runtimes switch off for all
// interfaces of a pod, and lets the interface announce a new MAC address, so that the node need not wait for its neighbour entry's end.
func prepare(namespace netns.NsHandle, name string, hops []net.IP) error {
	done := make(chan error, 1)
	// The thread ends with the goroutine, as it stays in the other namespace.
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(namespace); err != nil {
			done <- fmt.Errorf("enter the pod's namespace: %w", err)
			return
		}
		var faults []error
		for _, hop := range hops {
			if hop.To4() != nil {
				faults = append(faults, set("/proc/sys/net/ipv4/conf/"+name+"/arp_notify", "1"))
				continue
			}
			err := set("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", "0")
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("an IPv6 address is asked for, but %s has no IPv6 (an MTU below 1280, or a kernel without it)", name)
			} else if err == nil {
				err = set("/proc/sys/net/ipv6/conf/"+name+"/ndisc_notify", "1")
			}
			faults = append(faults, err)
		}
		done <- errors.Join(faults...)
	}()
	return <-done
}

// Forward lets the node forward packets of the addresses' families, as it must for any pod.
func Forward(addresses []net.IP) error {
	for _, hop := range families(addresses) {
		path := "/proc/sys/net/ipv6/conf/all/forwarding"
		if hop.To4() != nil {
			path = "/proc/sys/net/ipv4/ip_forward"
		}
		if err := set(path, "1"); err != nil {
			return err
		}
	}
	return nil
}

// set writes only a value that differs: the file may be read-only where the value is right.
func set(path, value string) error {
	found, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(bytes.TrimSpace(found)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("%s is %s and must be %s: %w", path, bytes.TrimSpace(found), value, err)
	}
	return nil
}
