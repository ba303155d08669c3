// SPDX-License-Identifier: Apache-2.0

package nodecall

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A socket that blocks, with deadlines: no thread of the runtime's has to be woken for it.
type socket struct {
	fd     int
	unread []byte // came with what was asked for
}

// Longest wait for a place in the queue of a ktsnd that does not take connections any more.
const connectPatience = time.Second

// Octets read at once: most answers with all their frames.
const chunkOctets = 4096

func dial(ctx context.Context, path string) (*socket, error) {
	wait := connectPatience
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	if wait < time.Microsecond { // nothing would mean: as long as it takes
		return nil, context.DeadlineExceeded
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	patience := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return &socket{fd: fd}, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// Ready waits until the socket can be read or written, or the deadline comes.
func (s *socket) ready(ctx context.Context, events int16) error {
	for {
		wait := -1
		if deadline, ok := ctx.Deadline(); ok {
			left := time.Until(deadline)
			if left <= 0 {
				return context.DeadlineExceeded
			}
			wait = int(min((left+time.Millisecond-1)/time.Millisecond, 1<<30))
		}
		count, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, wait)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case count > 0:
			return nil
		}
	}
}

func (s *socket) write(ctx context.Context, octets []byte) error {
	for len(octets) > 0 {
		if err := s.ready(ctx, unix.POLLOUT); err != nil {
			return err
		}
		count, err := unix.SendmsgN(s.fd, octets, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		octets = octets[max(count, 0):]
	}
	return nil
}

// Fill reads all of it.
func (s *socket) fill(ctx context.Context, octets []byte) error {
	for {
		count := copy(octets, s.unread)
		octets, s.unread = octets[count:], s.unread[count:]
		if len(octets) == 0 {
			return nil
		}
		if err := s.ready(ctx, unix.POLLIN); err != nil {
			return err
		}
		chunk := make([]byte, chunkOctets)
		count, err := unix.Read(s.fd, chunk)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case count == 0:
			return io.ErrUnexpectedEOF
		default:
			s.unread = chunk[:count]
		}
	}
}
