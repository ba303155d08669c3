// SPDX-License-Identifier: Apache-2.0

package nodecall_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodecall"
	"ktsn.io/ktsn/k8s/internal/nodepb"
	"ktsn.io/ktsn/k8s/internal/nodetest"
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
	for index := range 20000 {
		long.Vxlan.Peers = append(long.Vxlan.Peers, &nodepb.VxlanPeer{Prefix: fmt.Sprintf("10.%d.%d.0/24", index/256, index%256), Mac: "02:00:00:00:00:01"})
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
		if reply, err := client.Attach(ctx, &nodepb.AttachRequest{Attachment: long}); err != nil || !reply.GetExisted() {
			t.Fatalf("%v, %v", reply, err)
		}
		reply, err := client.List(ctx, &nodepb.ListRequest{})
		if err != nil || !proto.Equal(reply, d.list) {
			t.Fatalf("%d attachments, %v", len(reply.GetAttachments()), err)
		}
	}
}

func TestVersionIsAskedAhead(t *testing.T) {
	directory := t.TempDir()
	nodetest.Serve(t, directory, &daemon{attach: func(*nodepb.AttachRequest) error { return nil }})
	ctx := nodetest.Within(t, 10*time.Second)
	client := nodecall.New(directory)
	defer client.Close()
	client.AskVersion(ctx)
	client.AskVersion(ctx)
	if err := client.Compatible(ctx); err != nil {
		t.Fatal(err)
	}
	// Another call before the answer is taken does not mistake it for its own.
	client.AskVersion(ctx)
	if reply, err := client.Attach(ctx, &nodepb.AttachRequest{}); err != nil || !reply.GetExisted() {
		t.Errorf("%v, %v", reply, err)
	}
	if err := client.Compatible(ctx); err != nil {
		t.Error(err)
	}
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	directory := t.TempDir()
	client := nodecall.New(directory)
	defer client.Close()
	_, err := client.List(nodetest.Within(t, 100*time.Millisecond), &nodepb.ListRequest{})
	nodetest.WantError(t, err, codes.Unavailable, "ktsnd is not running: no socket at "+directory)
	client.AskVersion(nodetest.Within(t, time.Second))
	if client.Present() {
		t.Error("present")
	}

	d := &daemon{}
	server := nodetest.Serve(t, directory, d)
	_, err = client.Attach(nodetest.Within(t, 200*time.Millisecond), &nodepb.AttachRequest{})
	nodetest.WantError(t, err, codes.DeadlineExceeded, "did not answer Attach in time")
	d.attach = func(*nodepb.AttachRequest) error {
		return status.Error(codes.InvalidArgument, "attachment.late: “soon” 100%")
	}
	_, err = client.Attach(nodetest.Within(t, time.Second), &nodepb.AttachRequest{})
	nodetest.WantError(t, err, codes.InvalidArgument, "Attach", "attachment.late: “soon” 100%")
	_, err = client.Detach(nodetest.Within(t, time.Second), &nodepb.DetachRequest{})
	nodetest.WantError(t, err, codes.Unimplemented, "Detach", "upgrade it")

	// The connection breaks, and another daemon comes: the call goes there.
	server.Stop()
	time.AfterFunc(100*time.Millisecond, func() {
		nodetest.Serve(t, directory, &daemon{attach: func(*nodepb.AttachRequest) error { return nil }})
	})
	if _, err := client.Attach(nodetest.Within(t, 10*time.Second), &nodepb.AttachRequest{}); err != nil {
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
		_, err = client.Attach(nodetest.Within(t, 15*time.Millisecond), &nodepb.AttachRequest{})
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("no end: %v", err)
		}
	})
}
