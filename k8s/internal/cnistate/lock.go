// SPDX-License-Identifier: Apache-2.0

package cnistate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy: another run of the plugin holds the lock.
var ErrBusy = errors.New("another ADD, DEL or CHECK of this interface is running")

// Place of the lock that processes count under; interfaces have the ones before it.
const countPlace = 1 << 62

// Pauses between two tries to take a lock.
const (
	lockPauseMin = time.Millisecond
	lockPauseMax = 20 * time.Millisecond
)

// Lock keeps every other run away from one interface until the returned function is called, or the process ends. One octet of
// one file stands for each interface, so that no lock file is left over for one that is gone.
func (d Directory) Lock(ctx context.Context, containerID, ifName string) (func(), error) {
	return d.lockAt(ctx, placeOf(containerID, ifName))
}

func placeOf(containerID, ifName string) int64 { return offset(containerID, ifName) % countPlace }

func (d Directory) lockAt(ctx context.Context, place int64) (func(), error) {
	for pause := lockPauseMin; ; pause = min(2*pause, lockPauseMax) {
		unlock, err := d.tryLockAt(place)
		if !errors.Is(err, ErrBusy) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// TryLock is Lock that gives ErrBusy instead of waiting.
func (d Directory) TryLock(containerID, ifName string) (func(), error) {
	return d.tryLockAt(placeOf(containerID, ifName))
}

func (d Directory) tryLockAt(octet int64) (func(), error) {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(d.path, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	place := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: octet, Len: 1}
	// Of the open file, not of the process: threads and libraries that close another descriptor do not lose it.
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &place); err != nil {
		file.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("%s: lock: %w", file.Name(), err)
	}
	return func() { file.Close() }, nil
}
