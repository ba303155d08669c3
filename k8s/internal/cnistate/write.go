// SPDX-License-Identifier: Apache-2.0

package cnistate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A file that is written and does not count yet.
type pending struct {
	file       *os.File
	next, path string
}

// ToDisk waits for the disk; a test looks at what is synced, and when.
var toDisk = (*os.File).Sync

func write(path string, content []byte) error {
	file, err := prepare(path, content)
	if err != nil {
		return err
	}
	file.close()
	return file.rename()
}

func prepare(path string, content []byte) (*pending, error) {
	p := &pending{next: path + ".new", path: path}
	for tries := 0; ; tries++ {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		err := p.write(content)
		if err == nil {
			return p, nil
		}
		p.drop()
		// The folder went with the pod's other interface in between.
		if !errors.Is(err, fs.ErrNotExist) || tries == 10 {
			return nil, err
		}
	}
}

func (p *pending) write(content []byte) (err error) {
	if p.file, err = os.OpenFile(p.next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	if _, err = p.file.Write(content); err != nil {
		p.file.Close()
	}
	return err
}

func (p *pending) close() { p.file.Close() }

// Drop takes back what does not count yet; the folder stays while there is something else in it.
func (p *pending) drop() {
	os.Remove(p.next)
	os.Remove(filepath.Dir(p.path))
}

// Rename lets the file count.
func (p *pending) rename() error {
	if err := syscall.Rename(p.next, p.path); err != nil {
		os.Remove(p.next)
		return &os.LinkError{Op: "rename", Old: p.next, New: p.path, Err: err}
	}
	return nil
}

// Sync returns when the file that counts is on the disk, with its name and its folder's: one wait serves the three where the file system
// keeps a journal. It comes after the renaming as there is no older state that a power cut in between could cost.
func (p *pending) sync() error {
	folder := filepath.Dir(p.path)
	return errors.Join(toDisk(p.file), syncFolder(folder), syncFolder(filepath.Dir(folder)))
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(toDisk(folder), folder.Close())
}
