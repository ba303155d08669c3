// SPDX-License-Identifier: Apache-2.0

package nodecall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

// Version is the project's; a test of the tree holds it against Cargo.toml's.
const Version = "0.1.0"

// DefaultRunDir is ktsnd's unless KTSN_RUN_DIR says otherwise.
const DefaultRunDir = "/run/ktsn"

// SocketName of the control API inside ktsnd's run directory.
const SocketName = "ktsnd.sock"

// Pauses between two tries while ktsnd does not answer.
const (
	PauseMin = 20 * time.Millisecond
	PauseMax = 500 * time.Millisecond
)

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

// Error is what ktsnd, or its absence, makes of a call.
type Error struct {
	Method string // of the API, as in "Attach"
	Code   codes.Code
	Text   string
}

func (e *Error) Error() string { return e.Text }

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

// Explain says what an error of a connection, or a code and words of ktsnd's, means and what to do.
func Explain(socket, method string, cause error, code codes.Code, words string) *Error {
	found := &Error{Method: method, Code: code}
	switch {
	case errors.Is(cause, fs.ErrNotExist):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: no socket at %s (start ktsnd, or set the run directory)", socket)
	case errors.Is(cause, syscall.ECONNREFUSED):
		found.Code = codes.Unavailable
		found.Text = fmt.Sprintf("ktsnd is not running: nobody answers at %s, which is left over (start ktsnd)", socket)
	case errors.Is(cause, fs.ErrPermission):
		found.Code = codes.PermissionDenied
		found.Text = fmt.Sprintf("%s may be used by root alone: %v", socket, cause)
	case errors.Is(cause, syscall.EAGAIN):
		found.Code = codes.DeadlineExceeded
		found.Text = fmt.Sprintf("ktsnd at %s takes no connection (busy or stopped; its log tells)", socket)
	case errors.Is(cause, context.DeadlineExceeded), code == codes.DeadlineExceeded:
		found.Code = codes.DeadlineExceeded
		found.Text = fmt.Sprintf("ktsnd at %s did not answer %s in time (busy or stopped; its log tells)", socket, method)
	case code == codes.Unavailable:
		found.Text = fmt.Sprintf("ktsnd at %s went away during %s: %s", socket, method, words)
	case code == codes.Unimplemented:
		found.Text = fmt.Sprintf("ktsnd at %s does not know %s: it is older than this program (%s): upgrade it", socket, method, Version)
	case cause != nil:
		found.Text = fmt.Sprintf("%s: %v", socket, cause)
	default:
		found.Text = fmt.Sprintf("ktsnd: %s: %s", method, words)
	}
	return found
}

// Skew is an error unless ktsnd's version is ours up to the last number: fields that an older daemon does not know would be
// ignored in silence.
func Skew(socket, version string) error {
	if series(version) == series(Version) {
		return nil
	}
	return &Error{Method: "Version", Code: codes.FailedPrecondition, Text: fmt.Sprintf(
		"ktsnd at %s is version %s and this program %s: they must be the same up to the last number; upgrade the older one",
		socket, version, Version)}
}

// Series is a version without its last number and what follows it.
func series(version string) string {
	version, _, _ = strings.Cut(version, "-")
	if end := strings.LastIndexByte(version, '.'); end > 0 {
		return version[:end]
	}
	return version
}

// Patient waits, unless the deadline comes first.
func Patient(ctx context.Context, pause time.Duration) bool {
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
