// SPDX-License-Identifier: Apache-2.0

// Package nodecall calls ktsnd from a program that lives for milliseconds: tsn-cni.
//
// In: calls of proto/ktsn/v1/node.proto. Out: ktsnd's answers, or an *Error that says what to do, as from internal/nodeapi, which is for
// programs that stay. The libraries of gRPC and of protobuf cost such a program more time than everything else it does (their start, threads
// that wake each other); this speaks the same protocol on one blocking socket, a call at a time, and nothing of it that one client of one
// server does not need.
package nodecall

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/nodewire"
)

// Daemon is one ktsnd. It is for one goroutine at a time.
type Daemon struct {
	path   string
	stream *stream
	// Method of a call that is on its way.
	asked string
}

// New makes a client of the ktsnd with that run directory. It does not connect yet.
func New(runDir string) *Daemon { return &Daemon{path: filepath.Join(runDir, SocketName)} }

// Close ends the connection.
func (d *Daemon) Close() {
	if d.stream != nil {
		d.stream.socket.close()
		d.stream, d.asked = nil, ""
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

// AskAttach sends the call without waiting for the answer, which Attach takes. A failure is Attach's to tell.
func (d *Daemon) AskAttach(ctx context.Context, attachment *nodewire.Attachment) {
	d.ask(ctx, "Attach", nodewire.AttachRequest(attachment))
}

// Attach as in the API.
func (d *Daemon) Attach(ctx context.Context, attachment *nodewire.Attachment) error {
	_, err := d.call(ctx, "Attach", nodewire.AttachRequest(attachment))
	return err
}

// Detach as in the API.
func (d *Daemon) Detach(ctx context.Context, name string) error {
	_, err := d.call(ctx, "Detach", nodewire.DetachRequest(name))
	return err
}

// List gives the names of all attachments.
func (d *Daemon) List(ctx context.Context) ([]string, error) {
	reply, err := d.call(ctx, "List", nil)
	if err != nil {
		return nil, err
	}
	names, err := nodewire.ListReply(reply)
	if err != nil {
		return nil, Explain(d.path, "List", err, codes.Internal, "")
	}
	return names, nil
}

// Health is an error when ktsnd does not answer. What it says of itself is not looked at.
func (d *Daemon) Health(ctx context.Context) error {
	_, err := d.call(ctx, "Health", nil)
	return err
}

// AskVersion sends the question without waiting for the answer, which Compatible takes. A failure is Compatible's to tell.
func (d *Daemon) AskVersion(ctx context.Context) { d.ask(ctx, "Version", nil) }

// Compatible is an error unless ktsnd's version is ours up to the last number.
func (d *Daemon) Compatible(ctx context.Context) error {
	reply, err := d.call(ctx, "Version", nil)
	if err != nil {
		return err
	}
	version, err := nodewire.VersionReply(reply)
	if err != nil {
		return Explain(d.path, "Version", err, codes.Internal, "")
	}
	return Skew(d.path, version)
}

func (d *Daemon) ask(ctx context.Context, method string, message []byte) {
	if d.asked != "" || !d.Present() {
		return
	}
	if d.stream.send(ctx, method, message) != nil {
		d.Close()
		return
	}
	d.asked = method
}

// Call repeats while ktsnd is being restarted; every call of the API may be repeated. The context has a deadline, or there is none.
func (d *Daemon) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	for pause := PauseMin; ; pause = min(2*pause, PauseMax) {
		answer, code, words, err := d.once(ctx, method, message)
		if code == codes.OK && err == nil {
			return answer, nil
		}
		if err != nil {
			d.Close()
		}
		if code != codes.Unavailable || !Patient(ctx, pause) {
			if err != nil && words == "" {
				words = err.Error()
			}
			return nil, Explain(d.path, method, err, code, words)
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
	if d.asked != method {
		if err := d.stream.send(ctx, method, message); err != nil {
			return nil, codes.Unavailable, "", err
		}
	}
	d.asked = ""
	return d.stream.receive(ctx)
}
