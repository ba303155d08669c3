// SPDX-License-Identifier: Apache-2.0

package cnistate

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Folder of attachments that ktsnd has yet to detach. No container has such a name: it begins with a dot.
const detached = ".detached"

// Owed is an attachment to detach when ktsnd runs again: ktsnd keeps attachments over a restart.
type Owed struct {
	ContainerID string `json:"container_id"`
	IfName      string `json:"if_name"`
	Attachment  string `json:"attachment"`
	RunDir      string `json:"run_dir"`
}

func (d Directory) owedFile(attachment Owed) string {
	return filepath.Join(d.path, detached, HostInterface(attachment.ContainerID, attachment.IfName)+suffix)
}

// Owe notes that the attachment is to be detached.
func (d Directory) Owe(attachment Owed) error {
	content, err := json.Marshal(attachment)
	if err != nil {
		return err
	}
	return write(d.owedFile(attachment), append(content, '\n'))
}

// Owed returns the attachments to detach.
func (d Directory) Owed() []Owed {
	paths, _ := filepath.Glob(filepath.Join(escape(d.path), detached, "*"+suffix)) // the pattern is ours
	var all []Owed
	for _, path := range paths {
		var attachment Owed
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &attachment)
		}
		if err == nil && attachment.Attachment != "" {
			all = append(all, attachment)
		} else if !errors.Is(err, fs.ErrNotExist) {
			os.Remove(path) // cut off by a crash: its attachment is not known
		}
	}
	return all
}

// Settled forgets an attachment that was detached.
func (d Directory) Settled(attachment Owed) {
	os.Remove(d.owedFile(attachment))
	os.Remove(filepath.Join(d.path, detached))
}
