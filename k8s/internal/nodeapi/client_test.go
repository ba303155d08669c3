// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A daemon whose answers the test chooses.
type daemon struct {
	UnimplementedNodeServer
	version string
	attach  func() error
	calls   atomic.Int32
}

func (d *daemon) Version(context.Context, *VersionRequest) (*VersionReply, error) {
	return &VersionReply{Version: d.version}, nil
}

func (d *daemon) Attach(ctx context.Context, _ *AttachRequest) (*AttachReply, error) {
	d.calls.Add(1)
	if d.attach == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &AttachReply{}, d.attach()
}

// Serve answers at the run directory's socket until the test ends.
func serve(t *testing.T, directory string, d *daemon) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(directory, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	RegisterNodeServer(server, d)
	go server.Serve(listener) // ends with the test
	t.Cleanup(server.Stop)
}

func client(t *testing.T, directory string) *Daemon {
	t.Helper()
	c, err := New(directory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func wantError(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, expected %v", code)
	}
	if CodeOf(err) != code {
		t.Errorf("code %v, expected %v: %v", CodeOf(err), code, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

func TestAbsentDaemonIsNamed(t *testing.T) {
	directory := t.TempDir()
	_, err := client(t, directory).List(within(t, 100*time.Millisecond), &ListRequest{})
	wantError(t, err, codes.Unavailable, "ktsnd is not running: no socket at "+directory)
	if !IsAbsent(err) {
		t.Error("not taken for an absent daemon")
	}

	// A killed daemon leaves its socket.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	_, err = client(t, directory).List(within(t, 100*time.Millisecond), &ListRequest{})
	wantError(t, err, codes.Unavailable, "nobody answers at", "left over")
}

func TestDaemonThatStartsMeanwhileIsFound(t *testing.T) {
	directory := t.TempDir()
	c := client(t, directory)
	d := &daemon{attach: func() error { return nil }}
	time.AfterFunc(200*time.Millisecond, func() { serve(t, directory, d) })
	if _, err := c.Attach(within(t, 10*time.Second), &AttachRequest{}); err != nil {
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
	serve(t, directory, d)
	if _, err := client(t, directory).Attach(within(t, 10*time.Second), &AttachRequest{}); err != nil {
		t.Fatal(err)
	}
	if d.calls.Load() != 3 {
		t.Errorf("%d calls", d.calls.Load())
	}
}

func TestRefusalIsNotTriedAgainAndKeepsItsWords(t *testing.T) {
	directory := t.TempDir()
	d := &daemon{attach: func() error { return status.Error(codes.InvalidArgument, "attachment.late: 'soon'; expected …") }}
	serve(t, directory, d)
	_, err := client(t, directory).Attach(within(t, 10*time.Second), &AttachRequest{})
	wantError(t, err, codes.InvalidArgument, "Attach", "attachment.late: 'soon'")
	if d.calls.Load() != 1 {
		t.Errorf("%d calls", d.calls.Load())
	}
}

func TestDeadlineIsSaid(t *testing.T) {
	directory := t.TempDir()
	serve(t, directory, &daemon{})
	_, err := client(t, directory).Attach(within(t, 200*time.Millisecond), &AttachRequest{})
	wantError(t, err, codes.DeadlineExceeded, "did not answer Attach in time")
	if !IsAbsent(err) {
		t.Error("not taken for an absent daemon")
	}
}

func TestOlderDaemonIsNamed(t *testing.T) {
	directory := t.TempDir()
	serve(t, directory, &daemon{version: "9.8.7"})
	c := client(t, directory)
	_, err := c.GetPeers(within(t, time.Second), &GetPeersRequest{})
	wantError(t, err, codes.Unimplemented, "GetPeers", "upgrade it")
	wantError(t, c.Compatible(within(t, time.Second)), codes.FailedPrecondition, "9.8.7", Version)
}

func TestVersionsOfOneSeriesAreCompatible(t *testing.T) {
	for version, want := range map[string]bool{
		Version: true, "0.1.99": true, Version + "-rc.1": true,
		"0.2.0": false, "1.1.0": false, "": false, "nonsense": false,
	} {
		directory := t.TempDir()
		serve(t, directory, &daemon{version: version})
		if err := client(t, directory).Compatible(within(t, time.Second)); (err == nil) != want {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestRunDirectory(t *testing.T) {
	t.Setenv("KTSN_RUN_DIR", "")
	os.Unsetenv("KTSN_RUN_DIR")
	if got := RunDir(""); got != DefaultRunDir {
		t.Error(got)
	}
	t.Setenv("KTSN_RUN_DIR", "/x")
	if got := RunDir(""); got != "/x" {
		t.Error(got)
	}
	if got := RunDir("/y"); got != "/y" {
		t.Error(got)
	}
}
