// SPDX-License-Identifier: Apache-2.0

package cnistate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func directory(t *testing.T) Directory {
	t.Helper()
	return Open(filepath.Join(t.TempDir(), "state"))
}

func example(container string, ipam *IPAM) *State {
	return &State{ContainerID: container, IfName: "tsn0", Netns: "/proc/self/ns/net", Network: "tsn", Attachment: container + "/tsn0", IPAM: ipam}
}

// What is on the disk when Reserve returns: the whole state under its own name, that name, and its folder's.
func TestAReservationOutlastsAPowerCut(t *testing.T) {
	d := directory(t)
	var synced []string
	toDisk = func(file *os.File) error {
		// A renamed file keeps the name that it was opened by: what counts is what is there now.
		info, err := file.Stat()
		if err != nil {
			return err
		}
		name := file.Name()
		if now, err := os.Stat(strings.TrimSuffix(name, ".new")); err == nil && os.SameFile(info, now) {
			name = strings.TrimSuffix(name, ".new")
		}
		synced = append(synced, name)
		return nil
	}
	defer func() { toDisk = (*os.File).Sync }()
	if err := d.Reserve(context.Background(), example("c1", &IPAM{Type: "host-local", Config: json.RawMessage("{}")}), 0); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(d.Path(), "c1", "tsn0.json"), filepath.Join(d.Path(), "c1"), d.Path()}
	if !slices.Equal(synced, want) {
		t.Errorf("on the disk: %q, expected %q", synced, want)
	}
	// Without an address there is nothing that a power cut leaves: no wait.
	synced = nil
	if err := d.Reserve(context.Background(), example("c2", nil), 0); err != nil || len(synced) > 0 {
		t.Errorf("%q, %v", synced, err)
	}
	// What the disk refuses is not there.
	toDisk = func(*os.File) error { return errors.New("no disk") }
	if err := d.Reserve(context.Background(), example("c3", &IPAM{Config: json.RawMessage("{}")}), 0); err == nil {
		t.Error("no error")
	}
	if entries, _ := filepath.Glob(filepath.Join(d.Path(), "c3*")); len(entries) > 0 {
		t.Errorf("left: %q", entries)
	}
}

// A state that is prepared counts from its commit on, and one without a commit goes with the interface.
func TestAPreparedStateDoesNotCount(t *testing.T) {
	d := directory(t)
	state := example("c1", nil)
	if err := d.Save(state); err != nil {
		t.Fatal(err)
	}
	next := *state
	next.Done = true
	commit, err := d.Prepare(&next)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := d.Load("c1", "tsn0"); err != nil || found.Done {
		t.Errorf("%+v, %v", found, err)
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	if found, err := d.Load("c1", "tsn0"); err != nil || !found.Done {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := d.Prepare(state); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove("c1", "tsn0"); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(d.Path()); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}

// Cut off anywhere: an error that says so, never half a state, and the others are listed.
func TestTruncatedStates(t *testing.T) {
	d := directory(t)
	for _, container := range []string{"c1", "c2"} {
		if err := d.Save(example(container, &IPAM{Type: "host-local", Config: json.RawMessage(`{"a":1}`)})); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(d.Path(), "c1", "tsn0.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for length := range len(whole) - 1 { // the last octet ends the line
		if err := os.WriteFile(path, whole[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if state, err := d.Load("c1", "tsn0"); state != nil || !errors.Is(err, ErrBroken) {
			t.Fatalf("%d octets: %+v, %v", length, state, err)
		}
	}
	states, err := d.List()
	if len(states) != 1 || states[0].ContainerID != "c2" || !errors.Is(err, ErrBroken) {
		t.Errorf("%v, %v", states, err)
	}
	if err := d.Remove("c1", "tsn0"); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"null", "[]", "{}", `{"format_version":2,"container_id":"c1","if_name":"tsn0"}`, strings.Repeat("[", 100000)} {
		if err := d.Save(example("c1", nil)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if state, err := d.Load("c1", "tsn0"); state != nil || !errors.Is(err, ErrBroken) {
			t.Errorf("%.40s: %+v, %v", text, state, err)
		}
	}
}

func TestCapacityCountsWhatIsThere(t *testing.T) {
	d := directory(t)
	ctx := context.Background()
	gone := example("c0", nil)
	gone.Netns = filepath.Join(t.TempDir(), "gone") // lost by a reboot
	if err := d.Save(gone); err != nil {
		t.Fatal(err)
	}
	for _, container := range []string{"c1", "c2"} {
		if err := d.Reserve(ctx, example(container, nil), 2); err != nil {
			t.Fatal(err)
		}
	}
	err := d.Reserve(ctx, example("c3", nil), 2)
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "2 interfaces are attached, 2 fit") {
		t.Errorf("%v", err)
	}
	if entries, _ := filepath.Glob(filepath.Join(d.Path(), "c3*")); len(entries) > 0 {
		t.Errorf("left: %q", entries)
	}
	if err := d.Reserve(ctx, example("c3", nil), 0); err != nil || d.Count() != 3 {
		t.Errorf("%v, %d", err, d.Count())
	}
}

// No file has such a name; nothing can be known of it.
func TestNamesThatNoFileHas(t *testing.T) {
	d := directory(t)
	long := strings.Repeat("c", 300)
	if err := d.Save(example("c1", nil)); err != nil { // the directory is there
		t.Fatal(err)
	}
	if state, err := d.Load(long, "tsn0"); state != nil || err != nil {
		t.Errorf("%v, %v", state, err)
	}
	if err := d.Remove(long, "tsn0"); err != nil {
		t.Error(err)
	}
	if err := d.Reserve(context.Background(), example(long, nil), 0); err == nil {
		t.Error("no error")
	}
	// A write that fails, for this reason or on a full disk, leaves no folder.
	if err := d.Save(&State{ContainerID: "c2", IfName: long}); err == nil {
		t.Error("no error")
	}
	if entries, _ := filepath.Glob(filepath.Join(d.Path(), "c2*")); len(entries) > 0 {
		t.Errorf("left: %q", entries)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b"} {
		if err := d.Save(example(name, nil)); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
}
