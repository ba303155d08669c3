// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	_ "embed"
	"encoding/json"
	"strings"
)

//go:embed attachment.keys
var attachmentKeys string

// AttachmentKeys returns the names of all keys of an attachment, as ktsnd's schema has them.
func AttachmentKeys() (keys []string) {
	for line := range strings.Lines(attachmentKeys) {
		if !strings.HasPrefix(line, "#") {
			keys = append(keys, strings.TrimSuffix(line, "\n"))
		}
	}
	return keys
}

// Attachment is the part of an attachment's JSON that the programs of this module read (docs/interfaces.md, Attachment). ktsnd
// defines all fields and judges them.
type Attachment struct {
	Name              string   `json:"name"`
	Uplink            string   `json:"uplink"`
	Overlay           Overlay  `json:"overlay"`
	Destinations      []string `json:"destinations"`
	Classes           []int    `json:"classes"`
	Ingress           string   `json:"ingress"`
	Capture           string   `json:"capture"`
	AllowPolicyBypass bool     `json:"allow_policy_bypass"`
	VLAN              *int     `json:"vlan"`
	PCP               *int     `json:"pcp"`
}

// Overlay of an attachment; without VXLAN where the JSON is "none".
type Overlay struct{ VXLAN *VXLAN }

// VXLAN is the part of a VXLAN overlay that the programs of this module read.
type VXLAN struct {
	LearnFrom string `json:"learn_from"`
	Device    string `json:"device"`
	Local     string `json:"local"`
}

// UnmarshalJSON reads "none" or { "vxlan": … }. It leaves every other value to ktsnd, which refuses it.
func (o *Overlay) UnmarshalJSON(text []byte) error {
	var object struct {
		VXLAN *VXLAN `json:"vxlan"`
	}
	_ = json.Unmarshal(text, &object)
	o.VXLAN = object.VXLAN
	return nil
}

// ReadAttachment reads an attachment's JSON. A field of the wrong shape stays empty.
func ReadAttachment(text string) (found Attachment) {
	_ = json.Unmarshal([]byte(text), &found)
	return found
}
