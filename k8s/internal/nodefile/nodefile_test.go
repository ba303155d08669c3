// SPDX-License-Identifier: Apache-2.0

package nodefile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func example() Node {
	return Node{
		Version: "0.1.0", Node: "kn1", Prefixes: []string{"10.99.1.0/24", "fd99:0:0:1::/64"},
		CIDRs: []string{"10.99.0.0/16"}, MTU: 1450, VxlanDevice: "ktsn.1", Uplink: "eth0", Capacity: 8, Ready: true,
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if _, err := Read(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a missing file: %v", err)
	}
	if err := Write(path, example()); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !reflect.DeepEqual(got, example()) {
		t.Fatalf("read %+v, %v", got, err)
	}
}

func TestTheSameIsNotWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if err := Write(path, example()); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if err := Write(path, example()); err != nil {
		t.Fatal(err)
	}
	same, _ := os.Stat(path)
	if !os.SameFile(before, same) {
		t.Error("unchanged contents were written again")
	}
	changed := example()
	changed.Ready, changed.Reason = false, "no prefix yet"
	if err := Write(path, changed); err != nil {
		t.Fatal(err)
	}
	after, _ := os.Stat(path)
	if os.SameFile(before, after) {
		t.Error("the file was changed in place: a reader could see half of it")
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	if len(left) != 0 {
		t.Errorf("temporary files stayed: %v", left)
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "a wrong type": `{"prefixes": 7}`, "too long": strings.Repeat(" ", sizeMax+1),
	} {
		path := filepath.Join(t.TempDir(), Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestAFailedWriteLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, Name)
	// The target is a directory that is not empty, so the rename fails after everything else went well.
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err == nil {
		t.Fatal("written over a directory")
	}
	if err := Write(filepath.Join(folder, "missing", Name), example()); err == nil {
		t.Fatal("written into a missing folder")
	}
	entries, _ := os.ReadDir(folder)
	if len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}
