// SPDX-License-Identifier: Apache-2.0

// Package cnistate is what tsn-cni remembers between its runs: one file for each interface.
//
// In: a directory (/var/lib/cni/ktsn). Out: states by (containerID, interface), a lock for each, and the names of attachments that
// could not be detached as ktsnd was away. A state is written whole, before the first step that it describes, so that whatever
// an interrupted ADD has done can be undone from it alone. It never acts on a link, an address or ktsnd.
package cnistate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"ktsn.io/ktsn/k8s/internal/cniconf"
)

// DefaultDirectory unless state_dir or KTSN_CNI_STATE_DIR says otherwise.
const DefaultDirectory = "/var/lib/cni/ktsn"

// FormatVersion of a state file.
const FormatVersion = 1

// State of one interface of one pod.
type State struct {
	FormatVersion int             `json:"format_version"`
	ContainerID   string          `json:"container_id"`
	IfName        string          `json:"if_name"`
	Netns         string          `json:"netns"`
	Network       string          `json:"network"`
	Pod           cniconf.Pod     `json:"pod"`
	Attachment    string          `json:"attachment"` // its name at ktsnd
	Capture       string          `json:"capture,omitempty"`
	Policies      string          `json:"policies,omitempty"` // as in the network's configuration; empty: agent
	RunDir        string          `json:"run_dir"`
	DeviceID      string          `json:"device_id,omitempty"`
	HostInterface string          `json:"host_interface,omitempty"` // empty: the interface is another plugin's
	IPAM          *IPAM           `json:"ipam,omitempty"`
	Done          bool            `json:"done"`             // ADD came to its end
	Result        json.RawMessage `json:"result,omitempty"` // what it printed

	// Known by the running ADD alone: ADD has not attached yet. The file does not say this.
	Unattached bool `json:"-"`
}

// IPAM is what its plugin needs to give an address back.
type IPAM struct {
	Type   string          `json:"type"`
	Config json.RawMessage `json:"config"` // as on its standard input
	Args   string          `json:"args"`   // CNI_ARGS
	Path   string          `json:"path"`   // CNI_PATH

	Result json.RawMessage `json:"result,omitempty"` // what ADD got from it
}

// Directory of states.
type Directory struct{ path string }

// Open takes the directory asked for, else KTSN_CNI_STATE_DIR, else the default. Nothing is made yet.
func Open(asked string) Directory {
	for _, path := range []string{asked, os.Getenv("KTSN_CNI_STATE_DIR")} {
		if path != "" {
			return Directory{path}
		}
	}
	return Directory{DefaultDirectory}
}

// Path of the directory.
func (d Directory) Path() string { return d.path }

// AttachmentName at ktsnd.
func AttachmentName(containerID, ifName string) string { return containerID + "/" + ifName }

// HostInterface is the name of the host end; found again without any state.
func HostInterface(containerID, ifName string) string {
	hash := sha256.Sum256([]byte(AttachmentName(containerID, ifName)))
	return "ktsn" + hex.EncodeToString(hash[:])[:11]
}

func offset(containerID, ifName string) int64 {
	hash := sha256.Sum256([]byte(AttachmentName(containerID, ifName)))
	return int64(binary.BigEndian.Uint64(hash[:8]) >> 1)
}

const suffix = ".json"

func (d Directory) file(containerID, ifName string) (string, error) {
	for _, name := range []string{containerID, ifName} {
		// The runtime's library has checked both; a path must not depend on that.
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return "", fmt.Errorf("%q is no name for a state file", name)
		}
	}
	return filepath.Join(d.path, containerID, ifName+suffix), nil
}

// Load gives nil where there is no state. One that cannot be read is an error that wraps ErrBroken.
func (d Directory) Load(containerID, ifName string) (*State, error) {
	path, err := d.file(containerID, ifName)
	if err != nil {
		return nil, err
	}
	return load(path)
}

// Written identifies a state's file as it stands: each ADD writes another one. Empty: it is gone.
func (d Directory) Written(state *State) string {
	path, err := d.file(state.ContainerID, state.IfName)
	var found syscall.Stat_t
	if err != nil || syscall.Stat(path, &found) != nil {
		return ""
	}
	return fmt.Sprintf("%d %d.%09d", found.Ino, found.Ctim.Sec, found.Ctim.Nsec)
}

// ErrBroken: a state file that holds no state, or that of a newer version.
var ErrBroken = errors.New("broken state file")

func load(path string) (*State, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state := &State{}
	if err := json.Unmarshal(content, state); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrBroken, path, err)
	}
	if state.FormatVersion != FormatVersion || state.ContainerID == "" || state.IfName == "" {
		return nil, fmt.Errorf("%w %s: format version %d, expected %d", ErrBroken, path, state.FormatVersion, FormatVersion)
	}
	return state, nil
}

// ErrFull: the node has as many interfaces as it takes.
var ErrFull = errors.New("capacity is spent")

// Reserve writes the state of an ADD that begins. Where `most` is not 0 it counts the node's interfaces before, one process at a time, so
// that together they never get more. When it returns, the state outlasts a power cut: an address that is about to be leased must be
// known then, too; links and attachments are gone.
func (d Directory) Reserve(ctx context.Context, state *State, most int) error {
	file, err := d.prepare(state)
	if err != nil {
		return err
	}
	defer file.close()
	if err := d.claim(ctx, file, most); err != nil {
		file.drop()
		return err
	}
	if state.IPAM == nil {
		return nil
	}
	if err := file.sync(); err != nil {
		// What does not last does not count.
		_ = d.Remove(state.ContainerID, state.IfName)
		return err
	}
	return nil
}

// Claim lets the file count unless there are enough.
func (d Directory) claim(ctx context.Context, file *pending, most int) error {
	if most > 0 {
		unlock, err := d.lockAt(ctx, countPlace)
		if err != nil {
			return err
		}
		defer unlock()
		if count := d.Count(); count >= most {
			return fmt.Errorf("%w: %d interfaces are attached, %d fit", ErrFull, count, most)
		}
	}
	return file.rename()
}

// Count returns the number of interfaces with a namespace that exists: after a reboot the states of lost sandboxes wait for their DEL. Broken states
// do not count.
func (d Directory) Count() int {
	states, _ := d.List()
	count := 0
	for _, state := range states {
		if _, err := os.Stat(state.Netns); !errors.Is(err, fs.ErrNotExist) {
			count++
		}
	}
	return count
}

// Save writes the whole state, or leaves what was there.
func (d Directory) Save(state *State) error {
	commit, err := d.Prepare(state)
	if err != nil {
		return err
	}
	return commit()
}

// Prepare writes the whole state beside the one that counts; the returned function lets the new one count.
func (d Directory) Prepare(state *State) (commit func() error, err error) {
	file, err := d.prepare(state)
	if err != nil {
		return nil, err
	}
	file.close()
	return file.rename, nil
}

func (d Directory) prepare(state *State) (*pending, error) {
	path, err := d.file(state.ContainerID, state.IfName)
	if err != nil {
		return nil, err
	}
	state.FormatVersion = FormatVersion
	content, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	return prepare(path, append(content, '\n'))
}

// Remove forgets; no state is no error.
func (d Directory) Remove(containerID, ifName string) error {
	path, err := d.file(containerID, ifName)
	if err != nil {
		return err
	}
	os.Remove(path + ".new") // of a run that was killed
	// No file can have too long a name.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENAMETOOLONG) {
		return err
	}
	os.Remove(filepath.Dir(path)) // stays while the pod has another interface
	return nil
}

// List gives all states; broken ones come as one error beside the others.
func (d Directory) List() ([]*State, error) {
	paths, err := filepath.Glob(filepath.Join(escape(d.path), "*", "*"+suffix))
	if err != nil {
		return nil, err
	}
	var states []*State
	var broken []error
	for _, path := range paths {
		if filepath.Base(filepath.Dir(path)) == detached {
			continue
		}
		state, err := load(path)
		switch {
		case err != nil:
			broken = append(broken, err)
		case state != nil:
			states = append(states, state)
		}
	}
	return states, errors.Join(broken...)
}

func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
