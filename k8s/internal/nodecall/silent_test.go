// SPDX-License-Identifier: Apache-2.0

package nodecall_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/nodecall"
	"ktsn.io/ktsn/k8s/internal/nodetest"
)

// Listen without ever taking a connection; as many wait as the backlog holds.
func listen(t *testing.T, directory string, backlog int) string {
	t.Helper()
	path := filepath.Join(directory, nodecall.SocketName)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Took runs what ends at a deadline of its own and not at another one, which is many seconds later: a busy machine costs some.
func took(t *testing.T, least, most time.Duration, run func()) {
	t.Helper()
	begin := time.Now()
	run()
	if span := time.Since(begin); span < least || span > most {
		t.Errorf("took %v, expected %v to %v", span, least, most)
	}
}

// A stopped ktsnd: its socket takes connections until the backlog is full, and answers nothing.
func TestASilentDaemonCostsTheDeadlineAlone(t *testing.T) {
	directory := t.TempDir()
	listen(t, directory, 10)
	client := nodecall.New(directory)
	defer client.Close()
	took(t, 300*time.Millisecond, 5*time.Second, func() {
		nodetest.WantError(t, client.Compatible(nodetest.Within(t, 300*time.Millisecond)), codes.DeadlineExceeded, "did not answer Version in time")
	})
	took(t, 0, 5*time.Second, func() { client.AskVersion(nodetest.Within(t, 20*time.Second)) })
	took(t, 300*time.Millisecond, 5*time.Second, func() {
		nodetest.WantError(t, client.Compatible(nodetest.Within(t, 300*time.Millisecond)), codes.DeadlineExceeded, "did not answer Version in time")
	})
}

func TestAFullBacklogCostsTheDeadlineAlone(t *testing.T) {
	directory := t.TempDir()
	path := listen(t, directory, 0)
	// One waits; there is no place for another.
	waiting, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	client := nodecall.New(directory)
	defer client.Close()
	took(t, 300*time.Millisecond, 5*time.Second, func() {
		nodetest.WantError(t, client.Compatible(nodetest.Within(t, 300*time.Millisecond)), codes.DeadlineExceeded, "takes no connection", "busy or stopped")
	})
	// Without a deadline of the caller's there is one of our own.
	took(t, 500*time.Millisecond, 5*time.Second, func() {
		if client.Present() {
			t.Error("present")
		}
	})
}

func TestNobodyListens(t *testing.T) {
	directory := t.TempDir()
	client := nodecall.New(directory)
	defer client.Close()
	took(t, 0, 5*time.Second, func() {
		nodetest.WantError(t, client.Compatible(nodetest.Within(t, time.Second)), codes.Unavailable, "no socket at "+directory)
	})
	// Left over by one that was killed.
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, nodecall.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	took(t, 0, 5*time.Second, func() {
		nodetest.WantError(t, client.Compatible(nodetest.Within(t, time.Second)), codes.Unavailable, "nobody answers at "+directory, "start ktsnd")
	})
}
