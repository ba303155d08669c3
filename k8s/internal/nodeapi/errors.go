// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Version of this program. The project's check compares it with Cargo.toml.
const Version = "0.1.0"

// Error is a call of the API that failed. Its text says what to do.
type Error struct {
	Method string // of the API, such as "Attach"
	Code   codes.Code
	Words  string // ktsnd's own message; empty where ktsnd did not answer
	Text   string
}

func (e *Error) Error() string { return e.Text }

// CodeOf returns the gRPC code of a failed call, and codes.Unknown for every other error.
func CodeOf(err error) codes.Code {
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return codes.Unknown
}

// IsAbsent is true for an error that says that ktsnd does not run or does not answer. A later call may succeed.
func IsAbsent(err error) bool {
	code := CodeOf(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// isSocket is true as well where the path cannot be looked at.
func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Mode().Type() == fs.ModeSocket
}

// explain makes an *Error of the error that gRPC returned for a call.
func (d *Daemon) explain(method string, err error) error {
	if err == nil {
		return nil
	}
	answer := status.Convert(err)
	found := &Error{Method: method[strings.LastIndexByte(method, '/')+1:], Code: answer.Code()}
	var cause error
	if unreached := d.unreached.Load(); unreached != nil && IsAbsent(found) {
		cause = *unreached
	}
	switch {
	case errors.Is(cause, fs.ErrNotExist):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: no socket at %s (start ktsnd, or set the run directory)", d.socket)
	case errors.Is(cause, syscall.ECONNREFUSED) && !isSocket(d.socket):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: %s is no socket (remove it and start ktsnd, or set the run directory)", d.socket)
	case errors.Is(cause, syscall.ECONNREFUSED):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: the socket %s is left over and does not answer (start ktsnd)", d.socket)
	case errors.Is(cause, fs.ErrPermission):
		found.Code = codes.PermissionDenied
		found.Text = fmt.Sprintf("only root may use %s: %v", d.socket, cause)
	case errors.Is(cause, syscall.EAGAIN):
		found.Code = codes.DeadlineExceeded
		found.Text = fmt.Sprintf("ktsnd at %s takes no connection (busy or stopped; see its log)", d.socket)
	case errors.Is(cause, context.DeadlineExceeded), found.Code == codes.DeadlineExceeded:
		found.Code = codes.DeadlineExceeded
		found.Text = fmt.Sprintf("ktsnd at %s did not answer %s in time (busy or stopped; see its log)", d.socket, found.Method)
	case found.Code == codes.Unavailable:
		found.Text = fmt.Sprintf("ktsnd at %s went away during %s: %s", d.socket, found.Method, answer.Message())
	case found.Code == codes.Unimplemented:
		found.Text = fmt.Sprintf("ktsnd at %s does not know %s: it is older than this program (%s): upgrade it", d.socket, found.Method, Version)
	default:
		found.Words = answer.Message()
		found.Text = fmt.Sprintf("ktsnd: %s: %s", found.Method, found.Words)
	}
	return found
}

// Compatible asks ktsnd for its version. It must be ours up to the last number: another ktsnd may read and write other fields.
func (d *Daemon) Compatible(ctx context.Context) error {
	reply, err := d.Version(ctx, &VersionRequest{})
	if err != nil || series(reply.GetVersion()) == series(Version) {
		return err
	}
	return &Error{Method: "Version", Code: codes.FailedPrecondition, Text: fmt.Sprintf(
		"ktsnd at %s is version %s and this program %s: they must be the same up to the last number; upgrade the older one",
		d.socket, reply.GetVersion(), Version)}
}

// series is a version without its last number and what follows it.
func series(version string) string {
	version, _, _ = strings.Cut(version, "-")
	if end := strings.LastIndexByte(version, '.'); end > 0 {
		return version[:end]
	}
	return version
}
