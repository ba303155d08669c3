// SPDX-License-Identifier: Apache-2.0

package cnistate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A state file of any contents is a state that can be written again, or broken.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		`{"format_version":1,"container_id":"c","if_name":"eth0","netns":"/proc/1/ns/net","network":"tsn","pod":{"name":"a"},"attachment":"c/eth0",
			"run_dir":"/run/ktsn","host_interface":"ktsn0","ipam":{"type":"host-local","config":{"a":1},"args":"","path":"/opt"},"done":true,"result":{}}`,
		`{"format_version":2,"container_id":"c","if_name":"e"}`, `{}`, `null`, `{"format_version":1,"container_id":"../..","if_name":"e"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		directory := Open(t.TempDir())
		path := filepath.Join(directory.Path(), "c", "eth0"+suffix)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
		state, err := directory.Load("c", "eth0")
		switch {
		case errors.Is(err, ErrBroken):
			return
		case err != nil || state == nil:
			t.Fatalf("%v, %v", state, err)
		}
		// Whose names are no names is refused, and no other path is written.
		if _, err := directory.file(state.ContainerID, state.IfName); err != nil {
			if directory.Save(state) == nil {
				t.Fatalf("%q, %q: saved", state.ContainerID, state.IfName)
			}
			return
		}
		if len(state.ContainerID) > 200 || len(state.IfName) > 200 {
			return
		}
		if err := directory.Save(state); err != nil {
			t.Fatal(err)
		}
		again, err := directory.Load(state.ContainerID, state.IfName)
		if err != nil || again == nil || again.Attachment != state.Attachment || again.Done != state.Done || again.Pod != state.Pod {
			t.Fatalf("%+v read again as %+v, %v", state, again, err)
		}
	})
}
