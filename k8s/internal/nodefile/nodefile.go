// SPDX-License-Identifier: Apache-2.0

// Package nodefile is the node agent's word to tsn-cni: RUN_DIR/node.json.
//
// In: what the agent knows of its node. Out: a file that is always whole (written beside, synchronised, renamed), or
// what stands in it. It must never show half of a change, and reading it must never trust its size.
package nodefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
)

// Name is the file's name below RUN_DIR.
const Name = "node.json"

// sizeMax bounds what Read takes: prefixes of one node are few.
const sizeMax = 1 << 20

// Node is what tsn-cni needs to know of the node it runs on.
type Node struct {
	// Version of the agent that wrote it.
	Version string `json:"version"`
	// Node is the Kubernetes Node's name.
	Node string `json:"node"`
	// Prefixes are this node's pod prefixes of the TSN network, IPv4 and IPv6.
	Prefixes []string `json:"prefixes"`
	// CIDRs are the TSN network's prefixes of all nodes: what pods get routes to.
	CIDRs []string `json:"cidrs"`
	// MTU of the TSN network in octets (of the VXLAN device).
	MTU int `json:"mtu"`
	// VxlanDevice is the device that ktsnd learns peers from; empty without an overlay.
	VxlanDevice string `json:"vxlan_device"`
	// Uplink is the device that frames leave by.
	Uplink string `json:"uplink"`
	// Capacity counts the slots that the device plugin offers.
	Capacity int `json:"capacity"`
	// Ready says that pods can be attached; Reason says what is missing otherwise.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Read reads the file. A missing file is an error that errors.Is(err, os.ErrNotExist) knows.
func Read(path string) (Node, error) {
	var node Node
	if err := readJSON(path, &node); err != nil {
		return Node{}, err
	}
	return node, nil
}

// Write writes the file whole. It leaves the file alone when it says the same already.
func Write(path string, node Node) error {
	if old, err := Read(path); err == nil && reflect.DeepEqual(old, node) {
		return nil
	}
	return WriteJSON(path, node)
}

// readJSON reads one JSON document of bounded size.
func readJSON(path string, into any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, sizeMax+1))
	if err != nil {
		return err
	}
	if len(data) > sizeMax {
		return fmt.Errorf("%s: longer than %d octets: not what ktsn-node-agent writes", path, sizeMax)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Exists: whether there is a file at the path.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// WriteJSON writes a document as a whole, as WriteFile does.
func WriteJSON(path string, document any) error {
	data, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'), 0o644)
}

// WriteFile replaces a file by rename: readers see the old contents or the new ones, also after a crash.
func WriteFile(path string, data []byte, mode os.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode))
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
