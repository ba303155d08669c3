// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Silent makes a socket that takes connections and never answers, as that of a stopped ktsnd.
func (w *world) silent(backlog int) {
	w.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		w.t.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(w.runDir, nodeapi.SocketName)})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) takes(least, most time.Duration, run func()) {
	w.t.Helper()
	begin := time.Now()
	run()
	if span := time.Since(begin); span < least || span > most {
		w.t.Errorf("took %v, expected %v to %v", span, least, most)
	}
}

// AtOnce runs calls that need not wait: the fastest of several takes less than the shortest wait there is, which is two seconds. The
// machine may stand still in one of them.
func (w *world) atOnce(run func()) {
	w.t.Helper()
	const most = 1500 * time.Millisecond
	fastest := time.Hour
	for range 5 {
		begin := time.Now()
		run()
		if fastest = min(fastest, time.Since(begin)); fastest < most {
			return
		}
	}
	w.t.Errorf("took %v at least, expected %v", fastest, most)
}

// A stopped ktsnd costs every verb a bounded time, and ADD takes back what it has made.
func TestSilentDaemon(t *testing.T) {
	w := newWorld(t)
	w.silent(100)
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
	w.takes(2*time.Second, 10*time.Second, func() { w.refused(c, types.ErrTryAgainLater, "did not answer Version in time") })
	w.nothingLeft()
	status := call{verb: "STATUS", stdin: w.conf(nil)}
	w.takes(2*time.Second, 10*time.Second, func() { w.refused(status, codeUnavailable, "did not answer Version in time") })
	// Detachments that are owed cost GC a second together, and stay owed.
	directory := cnistate.Open(w.stateDir)
	for index := range 6 {
		name := fmt.Sprintf("o%d", index)
		if err := directory.Owe(cnistate.Owed{ContainerID: name, IfName: "tsn0", Attachment: name + "/tsn0", RunDir: w.runDir}); err != nil {
			t.Fatal(err)
		}
	}
	gc := call{verb: "GC", stdin: w.conf(map[string]any{"cni.dev/valid-attachments": []string{}})}
	w.takes(800*time.Millisecond, 5*time.Second, func() { w.must(gc) })
	if owed := directory.Owed(); len(owed) != 6 {
		t.Errorf("owed: %v", owed)
	}
}

func TestFullBacklog(t *testing.T) {
	w := newWorld(t)
	w.silent(0)
	waiting, err := net.Dial("unix", filepath.Join(w.runDir, nodeapi.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	w.takes(0, 6*time.Second, func() { w.refused(c, types.ErrTryAgainLater, "takes no connection") })
	w.nothingLeft()
	c.verb = "DEL"
	w.takes(0, 6*time.Second, func() { w.must(c) })
}

// Nobody listens: the runtime hears it at once, whether the socket is left over or not there.
func TestNobodyListens(t *testing.T) {
	w := newWorld(t)
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	w.atOnce(func() { w.refused(c, types.ErrTryAgainLater, "ktsnd is not running: no socket at "+w.runDir) })
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(w.runDir, nodeapi.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	w.atOnce(func() {
		w.refused(c, types.ErrTryAgainLater, w.runDir+"/ktsnd.sock is left over and does not answer", "start ktsnd")
	})
	w.nothingLeft()
}

// Many pods ask at once for the places that are left: as many are served as there are places.
func TestCapacityHoldsForManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	const capacity, pods = 7, 20
	w.writeNode(map[string]any{"capacity": capacity, "ready": true})
	var group sync.WaitGroup
	results := make([]error, pods)
	calls := make([]call, pods)
	for index := range pods {
		calls[index] = call{verb: "ADD", container: fmt.Sprintf("c%d", index), netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(nil)}
	}
	for index := range pods {
		group.Add(1)
		go func() {
			defer group.Done()
			_, results[index] = w.run(calls[index])
		}()
	}
	group.Wait()
	served := 0
	for _, err := range results {
		if err == nil {
			served++
		} else if cniError, _ := err.(*types.Error); cniError == nil || cniError.Code != codeCapacity {
			t.Errorf("%v", err)
		}
	}
	if served != capacity || len(w.attachments()) != capacity {
		t.Errorf("%d served, %d attached, expected %d", served, len(w.attachments()), capacity)
	}
	for index := range pods {
		calls[index].verb = "DEL"
		w.must(calls[index])
	}
	w.nothingLeft()
}

// A name that no file can have: refused with the reason, and nothing keeps DEL from its end.
func TestLongContainerID(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	for _, length := range []int{255, 256, 1000} {
		c := call{verb: "ADD", container: strings.Repeat("c", length), netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": w.ipam("10.99.1.0/24")})}
		if length > 255 {
			w.refused(c, codeState, "state directory", "file name too long")
		} else {
			w.must(c)
		}
		c.verb = "DEL"
		w.must(c)
		w.nothingLeft()
	}
}

// An IPAM plugin whose CHECK wants to see what its ADD gave, as the specification says.
func TestCheckHandsTheResultToIPAM(t *testing.T) {
	w := newWorld(t)
	w.startDaemon()
	const script = `#!/bin/sh
conf=$(cat)
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.1.9/24"}]}' ;;
CHECK) case $conf in
	*'"prevResult":{'*'"10.99.1.9/24"'*) ;;
	*) echo '{"cniVersion":"1.0.0","code":100,"msg":"no prevResult with the address"}'; exit 1 ;;
	esac ;;
esac
`
	ipam := filepath.Join(filepath.Dir(plugin), "wants-result")
	if err := os.WriteFile(ipam, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c := call{verb: "ADD", container: "c1", netns: path(namespace(t)), ifName: "tsn0", stdin: w.conf(map[string]any{"ipam": map[string]any{"type": "wants-result"}})}
	w.must(c)
	for _, verb := range []string{"CHECK", "DEL"} {
		c.verb = verb
		w.must(c)
	}
	w.nothingLeft()
}
