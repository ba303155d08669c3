// SPDX-License-Identifier: Apache-2.0

// Package nodeapi is the control API of ktsnd on this node: the generated types of proto/ktsn/v1/node.proto, and a client of
// RUN_DIR/ktsnd.sock.
//
// In: calls. Out: ktsnd's answers, or an *Error that says what to do. The client gives each call a deadline, and repeats it while ktsnd
// restarts; every call of the API may be repeated. It never checks a field that ktsnd checks: the caller gets ktsnd's own words.
package nodeapi

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// DefaultRunDir is ktsnd's run directory where KTSN_RUN_DIR is not set.
const DefaultRunDir = "/run/ktsn"

// SocketName is the socket of the control API in ktsnd's run directory.
const SocketName = "ktsnd.sock"

// Pauses between two tries while ktsnd does not answer.
const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// RunDir is the configured directory, else KTSN_RUN_DIR, else the default.
func RunDir(configured string) string {
	return cmp.Or(configured, os.Getenv("KTSN_RUN_DIR"), DefaultRunDir)
}

// Patience is the deadline of a call whose context has none; Attach takes about 0.2 s.
const Patience = 10 * time.Second

// Daemon is a client of one ktsnd. It is safe for concurrent use. Its calls (Attach, Detach, …) are those of the embedded NodeClient; each of them
// runs inside unary, which gives it its deadline and repeats it.
type Daemon struct {
	NodeClient
	// AbsencePatience limits how long a call waits for a ktsnd that takes no connection; New sets no limit. Where it is 0 the call tries once.
	AbsencePatience time.Duration

	connection *grpc.ClientConn
	socket     string
	// Error of the last attempt to connect; nil after a success. gRPC itself keeps only its text.
	unreached atomic.Pointer[error]
}

// replyMax in octets: a list of as many streams as ktsnd's memory allows is longer than gRPC's default of 4 MiB.
const replyMax = 128 << 20

// New makes a client of the ktsnd with that run directory. The first call connects.
func New(runDir string) *Daemon {
	client := &Daemon{AbsencePatience: math.MaxInt64, socket: filepath.Join(runDir, SocketName)}
	connection, err := grpc.NewClient("passthrough:///ktsnd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(client.dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(replyMax)),
		// gRPC's default pause begins with a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pauseMin, Multiplier: 2, MaxDelay: pauseMax},
			MinConnectTimeout: Patience,
		}),
		grpc.WithUnaryInterceptor(client.unary),
		grpc.WithStreamInterceptor(client.stream),
	)
	if err != nil {
		panic(err) // gRPC refuses only wrong options, and all of these are constant
	}
	client.connection, client.NodeClient = connection, NewNodeClient(connection)
	return client
}

// Close ends the connection.
func (d *Daemon) Close() error { return d.connection.Close() }

// Socket is the path of the control API.
func (d *Daemon) Socket() string { return d.socket }

// Process is the number of the process that takes connections at the socket; 0 for one of another PID namespace. It asks for no answer.
func (d *Daemon) Process(ctx context.Context) (int, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", d.socket)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var refused error
	err = raw.Control(func(fd uintptr) { peer, refused = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, refused); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

func (d *Daemon) dial(ctx context.Context, _ string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", d.socket)
	if err == nil {
		d.unreached.Store(nil)
	} else {
		d.unreached.Store(&err)
	}
	return connection, err
}

// unary gives a call its deadline, repeats it while ktsnd restarts, and explains its error.
func (d *Daemon) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if _, given := ctx.Deadline(); !given {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	begin := time.Now()
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		err := invoke(ctx, method, request, reply, connection, options...)
		isAbsent := d.unreached.Load() != nil && time.Since(begin) >= d.AbsencePatience
		if status.Code(err) != codes.Unavailable || isAbsent || !wait(ctx, pause) {
			return d.explain(method, err)
		}
		connection.ResetConnectBackoff()
	}
}

func (d *Daemon) stream(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string,
	begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := begin(ctx, description, connection, method, options...)
	return stream, d.explain(method, err)
}

// wait is false when the context ends before the pause does.
func wait(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
