// SPDX-License-Identifier: Apache-2.0

// Package nodecall calls ktsnd from a program that lives for milliseconds: tsn-cni.
//
// In: calls of proto/ktsn/v1/node.proto. Out: ktsnd's answers, or an *Error that says what to do, as from internal/nodeapi, which is for
// programs that stay. gRPC's own library costs such a program more time than everything else it does (its start, threads that wake each other);
// this speaks the same protocol on one blocking socket, a call at a time, and nothing of it that one client of one server does not need.
package nodecall

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"ktsn.io/ktsn/k8s/internal/nodepb"
)

// Daemon is one ktsnd. It is for one goroutine at a time.
type Daemon struct {
	path   string
	stream *stream
	// A Version call that is on its way.
	asked bool
}

// New makes a client of the ktsnd with that run directory. It does not connect yet.
func New(runDir string) *Daemon { return &Daemon{path: filepath.Join(runDir, SocketName)} }

// Close ends the connection.
func (d *Daemon) Close() {
	if d.stream != nil {
		d.stream.socket.close()
		d.stream, d.asked = nil, false
	}
}

// Present: whether anybody listens.
func (d *Daemon) Present() bool {
	if d.stream != nil {
		return true
	}
	stream, err := open(context.Background(), d.path)
	if err == nil {
		d.stream = stream
	}
	return err == nil
}

// Attach as in the API.
func (d *Daemon) Attach(ctx context.Context, request *nodepb.AttachRequest) (*nodepb.AttachReply, error) {
	reply := &nodepb.AttachReply{}
	return reply, d.call(ctx, "Attach", request, reply)
}

// Detach as in the API.
func (d *Daemon) Detach(ctx context.Context, request *nodepb.DetachRequest) (*nodepb.DetachReply, error) {
	reply := &nodepb.DetachReply{}
	return reply, d.call(ctx, "Detach", request, reply)
}

// List as in the API.
func (d *Daemon) List(ctx context.Context, request *nodepb.ListRequest) (*nodepb.ListReply, error) {
	reply := &nodepb.ListReply{}
	return reply, d.call(ctx, "List", request, reply)
}

// AskVersion sends the question without waiting for the answer, which Compatible takes. A failure is Compatible's to tell.
func (d *Daemon) AskVersion(ctx context.Context) {
	if d.asked || !d.Present() {
		return
	}
	if d.stream.send(ctx, "Version", nil) != nil {
		d.Close()
		return
	}
	d.asked = true
}

// Compatible is an error unless ktsnd's version is ours up to the last number.
func (d *Daemon) Compatible(ctx context.Context) error {
	reply := &nodepb.VersionReply{}
	if err := d.call(ctx, "Version", &nodepb.VersionRequest{}, reply); err != nil {
		return err
	}
	return Skew(d.path, reply.GetVersion())
}

// Call repeats while ktsnd is being restarted; every call of the API may be repeated. The context has a deadline, or there is none.
func (d *Daemon) call(ctx context.Context, method string, request, reply proto.Message) error {
	message, err := proto.Marshal(request)
	if err != nil {
		return Explain(d.path, method, err, codes.Internal, "")
	}
	for pause := PauseMin; ; pause = min(2*pause, PauseMax) {
		answer, code, words, err := d.once(ctx, method, message)
		if code == codes.OK && err == nil {
			err = proto.Unmarshal(answer, reply)
			if err == nil {
				return nil
			}
			code = codes.Internal
		}
		if err != nil {
			d.Close()
		}
		if code != codes.Unavailable || !Patient(ctx, pause) {
			if err != nil && words == "" {
				words = err.Error()
			}
			return Explain(d.path, method, err, code, words)
		}
	}
}

func (d *Daemon) once(ctx context.Context, method string, message []byte) ([]byte, codes.Code, string, error) {
	if d.stream == nil {
		stream, err := open(ctx, d.path)
		if err != nil {
			return nil, codes.Unavailable, "", err
		}
		d.stream = stream
	}
	if !d.asked || method != "Version" {
		if err := d.stream.send(ctx, method, message); err != nil {
			return nil, codes.Unavailable, "", err
		}
	}
	d.asked = false
	return d.stream.receive(ctx)
}
