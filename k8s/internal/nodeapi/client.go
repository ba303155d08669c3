// SPDX-License-Identifier: Apache-2.0

// Package nodeapi is the control API of ktsnd on this node: the types of proto/ktsn/v1/node.proto, generated, and a
// client of RUN_DIR/ktsnd.sock.
//
// In: calls. Out: ktsnd's answers, or an *Error that says what to do. Each call has a deadline, and is repeated while ktsnd
// is being restarted; every call of the API may be repeated. It never parses what ktsnd parses: a field that ktsnd
// refuses comes back as ktsnd's own words.
package nodeapi

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"ktsn.io/ktsn/k8s/internal/nodecall"
)

// What both clients of ktsnd have in common.
const (
	Version       = nodecall.Version
	DefaultRunDir = nodecall.DefaultRunDir
	SocketName    = nodecall.SocketName
)

// Error is what ktsnd, or its absence, makes of a call.
type Error = nodecall.Error

// RunDir is the directory asked for, else KTSN_RUN_DIR, else the default.
func RunDir(asked string) string { return nodecall.RunDir(asked) }

// CodeOf is the gRPC code of an error of a call; codes.Unknown for every other error.
func CodeOf(err error) codes.Code { return nodecall.CodeOf(err) }

// IsAbsent: no ktsnd, or none that answers. It may be there later.
func IsAbsent(err error) bool { return nodecall.IsAbsent(err) }

// Patience of one call without a deadline of its own; an attachment takes about 0.2 s.
const Patience = 10 * time.Second

// Daemon speaks to one ktsnd. It is safe for concurrent use.
type Daemon struct {
	NodeClient
	connection *grpc.ClientConn
	socket     string
	// Why nobody could be reached the last time; nil: somebody was. gRPC itself keeps no more than the words.
	unreached atomic.Pointer[error]
}

// replyMax is in octets: gRPC's own 4 MiB are too few for a list of all streams that ktsnd's memory budget has room for.
const replyMax = 128 << 20

// New makes a client of the ktsnd with that run directory. It does not connect yet: the first call does.
func New(runDir string) (*Daemon, error) {
	client := &Daemon{socket: filepath.Join(runDir, SocketName)}
	connection, err := grpc.NewClient("passthrough:///ktsnd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(client.dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(replyMax)),
		// gRPC's own pause begins with a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: nodecall.PauseMin, Multiplier: 2, MaxDelay: nodecall.PauseMax},
			MinConnectTimeout: Patience,
		}),
		grpc.WithUnaryInterceptor(client.unary),
		grpc.WithStreamInterceptor(client.stream),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", client.socket, err)
	}
	client.connection, client.NodeClient = connection, NewNodeClient(connection)
	return client, nil
}

// Close ends the connection.
func (c *Daemon) Close() error { return c.connection.Close() }

// Socket is the path of the control API.
func (c *Daemon) Socket() string { return c.socket }

func (c *Daemon) dial(ctx context.Context, _ string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", c.socket)
	if err == nil {
		c.unreached.Store(nil)
	} else {
		c.unreached.Store(&err)
	}
	return connection, err
}

// Unary gives a call its deadline, repeats it while ktsnd does not answer, and says what went wrong.
func (c *Daemon) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if _, given := ctx.Deadline(); !given {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	for pause := nodecall.PauseMin; ; pause = min(2*pause, nodecall.PauseMax) {
		err := invoke(ctx, method, request, reply, connection, options...)
		if status.Code(err) != codes.Unavailable || !nodecall.Patient(ctx, pause) {
			return c.explain(method, err)
		}
		connection.ResetConnectBackoff()
	}
}

func (c *Daemon) stream(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string,
	begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := begin(ctx, description, connection, method, options...)
	return stream, c.explain(method, err)
}

// Present: whether anybody listens at this moment.
func (c *Daemon) Present() bool {
	connection, err := c.dial(context.Background(), "")
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

func (c *Daemon) explain(method string, err error) error {
	if err == nil {
		return nil
	}
	code := status.Code(err)
	if unreached := c.unreached.Load(); unreached != nil && (code == codes.Unavailable || code == codes.DeadlineExceeded) {
		err = *unreached
	}
	words, cause := "", err
	if told, ok := status.FromError(err); ok {
		words, cause = told.Message(), nil
	}
	return nodecall.Explain(c.socket, method[strings.LastIndexByte(method, '/')+1:], cause, code, words)
}

// Compatible asks ktsnd's version, which must be ours up to the last number.
func (c *Daemon) Compatible(ctx context.Context) error {
	reply, err := c.Version(ctx, &VersionRequest{})
	if err != nil {
		return err
	}
	return nodecall.Skew(c.socket, reply.GetVersion())
}
