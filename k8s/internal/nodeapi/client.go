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
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Version is the project's; a test of the tree holds it against Cargo.toml's.
const Version = "0.1.0"

// DefaultRunDir is ktsnd's unless KTSN_RUN_DIR says otherwise.
const DefaultRunDir = "/run/ktsn"

// SocketName of the control API inside ktsnd's run directory.
const SocketName = "ktsnd.sock"

// Patience of one call without a deadline of its own; an attachment takes about 0.2 s.
const Patience = 10 * time.Second

// Pauses between two tries while ktsnd does not answer.
const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// Daemon speaks to one ktsnd. It is safe for concurrent use.
type Daemon struct {
	NodeClient
	connection *grpc.ClientConn
	socket     string
	// Why nobody could be reached the last time; nil: somebody was. gRPC itself keeps no more than the words.
	unreached atomic.Pointer[error]
}

// RunDir is the directory asked for, else KTSN_RUN_DIR, else the default.
func RunDir(asked string) string {
	if asked != "" {
		return asked
	}
	if directory := os.Getenv("KTSN_RUN_DIR"); directory != "" {
		return directory
	}
	return DefaultRunDir
}

// New makes a client of the ktsnd with that run directory. It does not connect yet: the first call does.
func New(runDir string) (*Daemon, error) {
	client := &Daemon{socket: filepath.Join(runDir, SocketName)}
	connection, err := grpc.NewClient("passthrough:///ktsnd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(client.dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
		// gRPC's own pause begins with a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pauseMin, Multiplier: 2, MaxDelay: pauseMax},
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
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		err := invoke(ctx, method, request, reply, connection, options...)
		if status.Code(err) != codes.Unavailable || !patient(ctx, pause) {
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

// Patient waits, unless the deadline comes first.
func patient(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Error is what ktsnd, or its absence, makes of a call.
type Error struct {
	Method string // of the API, as in "Attach"
	Code   codes.Code
	Text   string
}

func (e *Error) Error() string { return e.Text }

func (c *Daemon) explain(method string, err error) error {
	if err == nil {
		return nil
	}
	found := &Error{Method: method[strings.LastIndexByte(method, '/')+1:], Code: status.Code(err)}
	if unreached := c.unreached.Load(); unreached != nil && (found.Code == codes.Unavailable || found.Code == codes.DeadlineExceeded) {
		err = *unreached
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: no socket at %s (start ktsnd, or set the run directory)", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: nobody answers at %s, which is left over (start ktsnd)", c.socket)
	case errors.Is(err, fs.ErrPermission):
		found.Code = codes.PermissionDenied
		found.Text = fmt.Sprintf("%s may be used by root alone: %v", c.socket, err)
	case errors.Is(err, context.DeadlineExceeded), found.Code == codes.DeadlineExceeded:
		found.Code = codes.DeadlineExceeded
		found.Text = fmt.Sprintf("ktsnd at %s did not answer %s in time (busy or stopped; its log tells)", c.socket, found.Method)
	case found.Code == codes.Unavailable:
		found.Text = fmt.Sprintf("ktsnd at %s went away during %s: %s", c.socket, found.Method, status.Convert(err).Message())
	case found.Code == codes.Unimplemented:
		found.Text = fmt.Sprintf("ktsnd at %s does not know %s: it is older than this program (%s): upgrade it",
			c.socket, found.Method, Version)
	case found.Code == codes.Unknown && !isStatus(err):
		found.Text = fmt.Sprintf("%s: %v", c.socket, err)
	default:
		found.Text = fmt.Sprintf("ktsnd: %s: %s", found.Method, status.Convert(err).Message())
	}
	return found
}

func isStatus(err error) bool {
	_, ok := status.FromError(err)
	return ok
}

// CodeOf is the gRPC code of an error of a call; codes.Unknown for every other error.
func CodeOf(err error) codes.Code {
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return codes.Unknown
}

// IsAbsent: no ktsnd, or none that answers. It may be there later.
func IsAbsent(err error) bool {
	code := CodeOf(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// Compatible asks ktsnd's version. Fields that an older daemon does not know would be ignored in silence, so the
// versions must be the same up to the last number.
func (c *Daemon) Compatible(ctx context.Context) error {
	reply, err := c.Version(ctx, &VersionRequest{})
	if err != nil {
		return err
	}
	if series(reply.GetVersion()) == series(Version) {
		return nil
	}
	return &Error{Method: "Version", Code: codes.FailedPrecondition, Text: fmt.Sprintf(
		"ktsnd at %s is version %s and this program %s: they must be the same up to the last number; upgrade the older one",
		c.socket, reply.GetVersion(), Version)}
}

// Series is a version without its last number and what follows it.
func series(version string) string {
	version, _, _ = strings.Cut(version, "-")
	if end := strings.LastIndexByte(version, '.'); end > 0 {
		return version[:end]
	}
	return version
}
