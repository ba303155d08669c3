// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"slices"
	"strings"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Attachment is the part of the configuration that ktsnd defines and judges: keys and values as they are written.
type Attachment map[string]json.RawMessage

// Fields of an attachment that a pod may set for itself, by the arguments of its NetworkAttachmentDefinition: none of them widens
// what the network's configuration grants.
var podFields = []string{"capture_priority", "late", "overrun_limit", periodField, "take"}

// periodField is the field that a pod sets by PeriodAnnotation, too.
const periodField = "receive_period"

// isNetworkField is true for a field of an attachment that a pod may not set. Every other name in a pod's arguments belongs to another plugin:
// so does "name", and the runtime names the namespace and the interface.
func isNetworkField(field string) bool {
	ofRuntime := []string{"name", "netns", "interface"}
	return slices.Contains(nodeapi.AttachmentKeys(), field) && !slices.Contains(podFields, field) && !slices.Contains(ofRuntime, field)
}

// Has is true when the configuration sets the field, to whatever value.
func (a Attachment) Has(field string) bool { return a[field] != nil }

// Set overwrites a field.
func (a Attachment) Set(field string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // texts and lists of texts
	}
	a[field] = text
}

// JSON is the attachment as ktsnd takes it.
func (a Attachment) JSON() string {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // every value was read as JSON, or written by Set
	}
	return string(text)
}

// Read returns the fields that tsn-cni itself acts on. A value of the wrong shape reads as empty; ktsnd refuses it later.
func (a Attachment) Read() nodeapi.Attachment { return nodeapi.ReadAttachment(a.JSON()) }

// configured takes a field of the network's configuration.
func (c *Conf) configured(field string, raw json.RawMessage) error {
	switch {
	case strings.HasPrefix(field, "cni.dev/"): // the CNI specification keeps these keys for the runtime
		return nil
	case field == "netns", field == "interface":
		return fault(field, "the runtime names it; remove it")
	}
	return c.set(field, field, raw)
}

func (c *Conf) set(path, field string, raw json.RawMessage) error {
	// Without this rule an empty list of addresses or destinations would replace what tsn-cni fills in.
	switch strings.Join(strings.Fields(string(raw)), "") {
	case "null", `""`, "[]":
		return fault(path, "empty; leave it out for its default")
	}
	c.Attachment[field] = raw
	return nil
}

// asked takes a field of the pod's arguments.
func (c *Conf) asked(field string, raw json.RawMessage) error {
	c.choose("args.cni."+field, field, raw)
	switch {
	case isNetworkField(field):
		return fault("args.cni."+field, "a pod may not set it: the network's configuration does; a pod may set mac, %s",
			strings.Join(podFields, ", "))
	case slices.Contains(podFields, field):
		c.byPod = append(c.byPod, field)
		return c.set("args.cni."+field, field, raw)
	}
	return nil
}

// InOwnWords returns ktsnd's message about an attachment with the path of the field in tsn-cni's own input.
func (c *Conf) InOwnWords(message string) string {
	message, _, _ = strings.Cut(message, " at line 1 column ") // of the JSON that tsn-cni made
	message = strings.ReplaceAll(message, "`", "'")            // the guide shows messages as code
	rest, isAll := strings.CutPrefix(message, "attachment: ")
	if isAll {
		return "configuration: " + rest
	}
	rest, found := strings.CutPrefix(message, "attachment.")
	if !found {
		return message
	}
	field, _, _ := strings.Cut(rest, ":")
	if end := strings.IndexAny(field, ".["); end >= 0 {
		field = field[:end]
	}
	switch {
	case field == periodField && c.periodPath != "":
		return c.periodPath + strings.TrimPrefix(rest, field)
	case slices.Contains(c.byPod, field):
		return "args.cni." + rest
	case c.Attachment.Has(field):
		return rest
	}
	return message
}
