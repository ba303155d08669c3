// SPDX-License-Identifier: Apache-2.0

package nodecall_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodecall"
	"ktsn.io/ktsn/k8s/internal/nodepb"
	"ktsn.io/ktsn/k8s/internal/nodetest"
	"ktsn.io/ktsn/k8s/internal/nodewire"
)

// A daemon of gRPC's own library, whose answers the test chooses.
type daemon struct {
	nodeapi.UnimplementedNodeServer
	attach func(*nodepb.AttachRequest) error
	list   *nodepb.ListReply
	calls  atomic.Int32
}

func (d *daemon) Version(context.Context, *nodepb.VersionRequest) (*nodepb.VersionReply, error) {
	return &nodepb.VersionReply{Version: nodecall.Version}, nil
}

func (d *daemon) Attach(ctx context.Context, request *nodepb.AttachRequest) (*nodepb.AttachReply, error) {
	d.calls.Add(1)
	if d.attach == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &nodepb.AttachReply{Existed: true}, d.attach(request)
}

func (d *daemon) List(context.Context, *nodepb.ListRequest) (*nodepb.ListReply, error) {
	return d.list, nil
}

// A request and an answer that need many frames and more than the first window: nothing is lost on the way.
func TestLongMessagesArriveWhole(t *testing.T) {
	directory := t.TempDir()
	long := &nodepb.Attachment{Name: "c1/net1", Vxlan: &nodepb.Vxlan{}}
	ours := &nodewire.Attachment{Name: "c1/net1", Vxlan: &nodewire.Vxlan{}}
	for index := range 20000 {
		prefix, mac := fmt.Sprintf("10.%d.%d.0/24", index/256, index%256), "02:00:00:00:00:01"
		long.Vxlan.Peers = append(long.Vxlan.Peers, &nodepb.VxlanPeer{Prefix: prefix, Mac: mac})
		ours.Vxlan.Peers = append(ours.Vxlan.Peers, &nodewire.VxlanPeer{Prefix: prefix, Mac: mac})
	}
	d := &daemon{list: &nodepb.ListReply{Attachments: []*nodepb.AttachmentState{{Attachment: long}, {Attachment: long}}}}
	d.attach = func(request *nodepb.AttachRequest) error {
		if !proto.Equal(request.GetAttachment(), long) {
			return status.Error(codes.DataLoss, "another message")
		}
		return nil
	}
	nodetest.Serve(t, directory, d)
	client := nodecall.New(directory)
	defer client.Close()
	ctx := nodetest.Within(t, 30*time.Second)
	for range 3 {
		if err := client.Attach(ctx, ours); err != nil {
			t.Fatal(err)
		}
		names, err := client.List(ctx)
		if err != nil || !slices.Equal(names, []string{"c1/net1", "c1/net1"}) {
			t.Fatalf("%q, %v", names, err)
		}
	}
}

func TestVersionIsAskedAhead(t *testing.T) {
	directory := t.TempDir()
	d := &daemon{attach: func(*nodepb.AttachRequest) error { return nil }}
	nodetest.Serve(t, directory, d)
	ctx := nodetest.Within(t, 20*time.Second)
	client := nodecall.New(directory)
	defer client.Close()
	client.AskVersion(ctx)
	client.AskVersion(ctx)
	if err := client.Compatible(ctx); err != nil {
		t.Fatal(err)
	}
	// Another call before the answer is taken does not mistake it for its own.
	client.AskVersion(ctx)
	if err := client.Attach(ctx, &nodewire.Attachment{}); err != nil {
		t.Error(err)
	}
	if err := client.Compatible(ctx); err != nil {
		t.Error(err)
	}
	// A call that was sent ahead is made once.
	before := d.calls.Load()
	client.AskAttach(ctx, &nodewire.Attachment{})
	if err := client.Attach(ctx, &nodewire.Attachment{}); err != nil || d.calls.Load() != before+1 {
		t.Errorf("%d calls, %v", d.calls.Load()-before, err)
	}
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	directory := t.TempDir()
	client := nodecall.New(directory)
	defer client.Close()
	_, err := client.List(nodetest.Within(t, time.Second))
	nodetest.WantError(t, err, codes.Unavailable, "ktsnd is not running: no socket at "+directory)
	client.AskVersion(nodetest.Within(t, time.Second))
	if client.Present() {
		t.Error("present")
	}

	first := nodetest.Serve(t, directory, &daemon{})
	err = client.Attach(nodetest.Within(t, time.Second), &nodewire.Attachment{})
	nodetest.WantError(t, err, codes.DeadlineExceeded, "did not answer Attach in time")
	first.Stop()
	server := nodetest.Serve(t, directory, &daemon{attach: func(*nodepb.AttachRequest) error {
		return status.Error(codes.InvalidArgument, "attachment.late: “soon” 100%")
	}})
	err = client.Attach(nodetest.Within(t, 20*time.Second), &nodewire.Attachment{})
	nodetest.WantError(t, err, codes.InvalidArgument, "Attach", "attachment.late: “soon” 100%")
	err = client.Detach(nodetest.Within(t, 20*time.Second), "c1/net1")
	nodetest.WantError(t, err, codes.Unimplemented, "Detach", "upgrade it")

	// The connection breaks, and another daemon comes: the call goes there.
	server.Stop()
	time.AfterFunc(100*time.Millisecond, func() {
		d := &daemon{attach: func(*nodepb.AttachRequest) error { return nil }}
		listener, err := net.Listen("unix", filepath.Join(directory, nodecall.SocketName))
		if err != nil {
			t.Error(err)
			return
		}
		server := grpc.NewServer()
		nodeapi.RegisterNodeServer(server, d)
		t.Cleanup(server.Stop)
		go server.Serve(listener)
	})
	if err := client.Attach(nodetest.Within(t, 20*time.Second), &nodewire.Attachment{}); err != nil {
		t.Fatal(err)
	}
}

// Whatever answers on that socket: an error or an answer within the deadline, never a panic.
func FuzzAnswer(f *testing.F) {
	frame := func(kind, flags byte, payload ...byte) []byte {
		return append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 3}, payload...)
	}
	ok := frame(1, 5, 0x40, 11, 'g', 'r', 'p', 'c', '-', 's', 't', 'a', 't', 'u', 's', 1, '0')
	for _, seed := range [][]byte{
		nil, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), {0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0}, frame(0, 1, 0, 0, 0, 0, 0), frame(0, 8, 9, 1),
		frame(0, 8), frame(1, 0x2c, 200, 1), frame(1, 0x20, 1), frame(9, 4, 0x80), frame(3, 0, 0, 0, 0, 7), frame(7, 0, 0), frame(8, 0, 1), frame(4, 0, 0, 4, 0xff, 0xff, 0xff, 0xff),
		ok, append(frame(0, 0, 0, 0, 0, 0, 0), ok...), append(frame(0, 0, 1, 0, 0, 0, 0), ok...), bytes.Repeat(frame(1, 0, 0x82), 50), bytes.Repeat(frame(6, 0, 1, 2, 3, 4, 5, 6, 7, 8), 20),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		directory := t.TempDir()
		listener, err := net.Listen("unix", filepath.Join(directory, nodecall.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				go io.Copy(io.Discard, connection)
				connection.Write(answer)
				connection.(*net.UnixConn).CloseWrite()
			}
		}()
		client := nodecall.New(directory)
		defer client.Close()
		begin := time.Now()
		err = client.Attach(nodetest.Within(t, 15*time.Millisecond), &nodewire.Attachment{})
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("no end: %v", err)
		}
	})
}
