// SPDX-License-Identifier: Apache-2.0

package nodeapi_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodetest"
)

// A daemon whose answers the test chooses.
type daemon struct {
	nodeapi.UnimplementedNodeServer
	version string
	attach  func() error
	list    *nodeapi.ListReply
	calls   atomic.Int32
}

func (d *daemon) Version(context.Context, *nodeapi.VersionRequest) (*nodeapi.VersionReply, error) {
	return &nodeapi.VersionReply{Version: d.version}, nil
}

func (d *daemon) Attach(ctx context.Context, _ *nodeapi.AttachRequest) (*nodeapi.AttachReply, error) {
	d.calls.Add(1)
	if d.attach == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &nodeapi.AttachReply{}, d.attach()
}

func (d *daemon) List(context.Context, *nodeapi.ListRequest) (*nodeapi.ListReply, error) {
	return d.list, nil
}

func client(t *testing.T, directory string) *nodeapi.Daemon {
	t.Helper()
	c := nodeapi.New(directory)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAbsentDaemonIsNamed(t *testing.T) {
	directory := t.TempDir()
	c := client(t, directory)
	c.AbsencePatience = 30 * time.Millisecond // an hour without it
	_, err := c.List(nodetest.Within(t, time.Hour), &nodeapi.ListRequest{})
	nodetest.WantError(t, err, codes.Unavailable, "ktsnd is not running: no socket at "+directory)
	if !nodeapi.IsAbsent(err) {
		t.Error("not taken for an absent daemon")
	}

	// A killed daemon leaves its socket.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, nodeapi.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	_, err = client(t, directory).List(nodetest.Within(t, time.Second), &nodeapi.ListRequest{})
	nodetest.WantError(t, err, codes.Unavailable, "is left over and does not answer")

	directory = t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, nodeapi.SocketName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = client(t, directory).List(nodetest.Within(t, time.Second), &nodeapi.ListRequest{})
	nodetest.WantError(t, err, codes.Unavailable, nodeapi.SocketName+" is no socket")
}

func TestDaemonThatStartsMeanwhileIsFound(t *testing.T) {
	directory := t.TempDir()
	c := client(t, directory)
	d := &daemon{attach: func() error { return nil }}
	time.AfterFunc(200*time.Millisecond, func() { nodetest.Serve(t, directory, d) })
	if _, err := c.Attach(nodetest.Within(t, 20*time.Second), &nodeapi.AttachRequest{}); err != nil {
		t.Fatal(err)
	}
}

func TestUnavailableIsTriedAgain(t *testing.T) {
	directory := t.TempDir()
	d := &daemon{}
	d.attach = func() error {
		if d.calls.Load() < 3 {
			return status.Error(codes.Unavailable, "ktsnd is ending")
		}
		return nil
	}
	nodetest.Serve(t, directory, d)
	if _, err := client(t, directory).Attach(nodetest.Within(t, 20*time.Second), &nodeapi.AttachRequest{}); err != nil {
		t.Fatal(err)
	}
	if d.calls.Load() != 3 {
		t.Errorf("%d calls", d.calls.Load())
	}
}

func TestRefusalIsNotTriedAgainAndKeepsItsWords(t *testing.T) {
	directory := t.TempDir()
	d := &daemon{attach: func() error { return status.Error(codes.InvalidArgument, "attachment.late: 'soon'; expected …") }}
	nodetest.Serve(t, directory, d)
	_, err := client(t, directory).Attach(nodetest.Within(t, 20*time.Second), &nodeapi.AttachRequest{})
	nodetest.WantError(t, err, codes.InvalidArgument, "Attach", "attachment.late: 'soon'")
	if d.calls.Load() != 1 {
		t.Errorf("%d calls", d.calls.Load())
	}
}

func TestDeadlineIsSaid(t *testing.T) {
	directory := t.TempDir()
	nodetest.Serve(t, directory, &daemon{})
	_, err := client(t, directory).Attach(nodetest.Within(t, time.Second), &nodeapi.AttachRequest{})
	nodetest.WantError(t, err, codes.DeadlineExceeded, "did not answer Attach in time")
	if !nodeapi.IsAbsent(err) {
		t.Error("not taken for an absent daemon")
	}
}

func TestOlderDaemonIsNamed(t *testing.T) {
	directory := t.TempDir()
	nodetest.Serve(t, directory, &daemon{version: "9.8.7"})
	c := client(t, directory)
	_, err := c.GetPeers(nodetest.Within(t, 20*time.Second), &nodeapi.GetPeersRequest{})
	nodetest.WantError(t, err, codes.Unimplemented, "GetPeers", "upgrade it")
	nodetest.WantError(t, c.Compatible(nodetest.Within(t, 20*time.Second)), codes.FailedPrecondition, "9.8.7", nodeapi.Version)
}

func TestVersionsOfOneSeriesAreCompatible(t *testing.T) {
	for version, want := range map[string]bool{
		nodeapi.Version: true, "0.1.99": true, nodeapi.Version + "-rc.1": true,
		"0.2.0": false, "1.1.0": false, "": false, "nonsense": false,
	} {
		directory := t.TempDir()
		nodetest.Serve(t, directory, &daemon{version: version})
		if err := client(t, directory).Compatible(nodetest.Within(t, 20*time.Second)); (err == nil) != want {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

// A list that is longer than gRPC takes by default.
func TestALongListArrivesWhole(t *testing.T) {
	directory := t.TempDir()
	long := `{"name":"c1/net1","destinations":["` + strings.Repeat("x", 6<<20) + `"]}`
	nodetest.Serve(t, directory, &daemon{list: &nodeapi.ListReply{Attachments: []*nodeapi.AttachmentState{{Attachment: long}}}})
	reply, err := client(t, directory).List(nodetest.Within(t, 20*time.Second), &nodeapi.ListRequest{})
	if err != nil || len(reply.GetAttachments()) != 1 || reply.GetAttachments()[0].GetAttachment() != long {
		t.Fatalf("%v", err)
	}
}

// A stopped ktsnd: its socket takes connections until the backlog is full, and answers nothing.
func TestFullBacklogIsSaid(t *testing.T) {
	directory := t.TempDir()
	address := &unix.SockaddrUnix{Name: filepath.Join(directory, nodeapi.SocketName)}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, address), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	c := client(t, directory)
	nodetest.WantError(t, c.Compatible(nodetest.Within(t, 300*time.Millisecond)), codes.DeadlineExceeded, "did not answer Version in time")
	waiting, err := net.Dial("unix", address.Name)
	if err == nil {
		defer waiting.Close()
	}
	c = client(t, directory)
	nodetest.WantError(t, c.Compatible(nodetest.Within(t, 300*time.Millisecond)), codes.DeadlineExceeded, "takes no connection", "busy or stopped")
	c.AbsencePatience = 0
	nodetest.WantError(t, c.Compatible(nodetest.Within(t, time.Hour)), codes.DeadlineExceeded, "takes no connection")
}

func TestAttachmentIsRead(t *testing.T) {
	seven := 7
	for text, want := range map[string]nodeapi.Attachment{
		`{"name":"a","overlay":"none","vlan":7,"classes":[0,7],"late":"drop"}`: {Name: "a", VLAN: &seven, Classes: []int{0, 7}},
		`{"overlay":{"vxlan":{"local":"192.0.2.1","peers":[]}},"pcp":7}`:       {PCP: &seven, Overlay: nodeapi.Overlay{VXLAN: &nodeapi.VXLAN{Local: "192.0.2.1"}}},
		// A value of the wrong shape is empty, the others are read.
		`{"overlay":7,"destinations":"x","ingress":[],"capture":"kernel"}`: {Capture: "kernel"},
		`nonsense`: {},
	} {
		if found := nodeapi.ReadAttachment(text); !reflect.DeepEqual(found, want) {
			t.Errorf("%s: %+v", text, found)
		}
	}
}

func TestRunDirectory(t *testing.T) {
	t.Setenv("KTSN_RUN_DIR", "")
	os.Unsetenv("KTSN_RUN_DIR")
	if got := nodeapi.RunDir(""); got != nodeapi.DefaultRunDir {
		t.Error(got)
	}
	t.Setenv("KTSN_RUN_DIR", "/x")
	if got := nodeapi.RunDir(""); got != "/x" {
		t.Error(got)
	}
	if got := nodeapi.RunDir("/y"); got != "/y" {
		t.Error(got)
	}
}
