// SPDX-License-Identifier: Apache-2.0

// Package nodewire is the part of ktsnd's control API that tsn-cni speaks, without protobuf's library.
//
// In: an attachment, a name. Out: the same octets as internal/nodepb makes of them, and of an answer what tsn-cni looks at. That library costs a
// program that lives for milliseconds more at its start (it describes all messages to itself) than everything that is done with
// it. Messages only: no socket, no judgement of a value.
package nodewire

// VxlanPeer as in proto/ktsn/v1/node.proto, like everything here.
type VxlanPeer struct {
	Prefix string
	Vtep   string
	Mac    string
}

// Vxlan overlay of an attachment.
type Vxlan struct {
	Mode           string
	Vni            uint32
	Port           uint32
	Local          string
	Device         string
	Peers          []*VxlanPeer
	LearnFrom      string
	Flood          []string
	FloodInterface *bool
	Ttl            string
	Tos            string
	Df             string
	UdpChecksum    *bool
}

// Attachment of one interface. Empty means the default.
type Attachment struct {
	Name              string
	Netns             string
	Interface         string
	Uplink            string
	Vxlan             *Vxlan
	Destinations      []string
	Classes           []uint32
	Late              string
	OverrunLimitNs    uint64
	HorizonNs         uint64
	AllowTai          *bool
	Slots             uint32
	ClientsMax        uint32
	OctetsMax         uint64
	TakePriorityMin   *uint32
	Vlan              *uint32
	Pcp               *uint32
	Capture           string
	CapturePriority   uint32
	AllowPolicyBypass *bool
	Ingress           string
	Addresses         []string
	MemoryMax         uint64
	Ethernet          string
}

// AttachRequest's octets.
func AttachRequest(attachment *Attachment) []byte {
	return appendOctets(nil, 1, attachment.octets())
}

// DetachRequest's octets.
func DetachRequest(name string) []byte { return appendText(nil, 1, name) }

func (p *VxlanPeer) octets() []byte {
	b := appendText(nil, 1, p.Prefix)
	b = appendText(b, 2, p.Vtep)
	return appendText(b, 3, p.Mac)
}

func (v *Vxlan) octets() []byte {
	b := appendText(nil, 1, v.Mode)
	b = appendNumber(b, 2, v.Vni)
	b = appendNumber(b, 3, v.Port)
	b = appendText(b, 4, v.Local)
	b = appendText(b, 5, v.Device)
	for _, peer := range v.Peers {
		b = appendOctets(b, 6, peer.octets())
	}
	b = appendText(b, 7, v.LearnFrom)
	b = appendTexts(b, 20, v.Flood)
	b = appendTruth(b, 21, v.FloodInterface)
	b = appendText(b, 22, v.Ttl)
	b = appendText(b, 23, v.Tos)
	b = appendText(b, 24, v.Df)
	return appendTruth(b, 25, v.UdpChecksum)
}

func (a *Attachment) octets() []byte {
	b := appendText(nil, 1, a.Name)
	b = appendText(b, 2, a.Netns)
	b = appendText(b, 3, a.Interface)
	b = appendText(b, 4, a.Uplink)
	if a.Vxlan != nil {
		b = appendOctets(b, 5, a.Vxlan.octets())
	}
	b = appendTexts(b, 6, a.Destinations)
	b = appendNumbers(b, 7, a.Classes)
	b = appendText(b, 8, a.Late)
	b = appendNumber(b, 9, a.OverrunLimitNs)
	b = appendNumber(b, 10, a.HorizonNs)
	b = appendTruth(b, 11, a.AllowTai)
	b = appendNumber(b, 12, a.Slots)
	b = appendNumber(b, 13, a.ClientsMax)
	b = appendNumber(b, 14, a.OctetsMax)
	b = appendGiven(b, 15, a.TakePriorityMin)
	b = appendGiven(b, 16, a.Vlan)
	b = appendGiven(b, 17, a.Pcp)
	b = appendText(b, 20, a.Capture)
	b = appendNumber(b, 21, a.CapturePriority)
	b = appendTruth(b, 30, a.AllowPolicyBypass)
	b = appendText(b, 40, a.Ingress)
	b = appendTexts(b, 50, a.Addresses)
	b = appendNumber(b, 60, a.MemoryMax)
	return appendText(b, 61, a.Ethernet)
}

// VersionReply's version.
func VersionReply(octets []byte) (string, error) {
	var version string
	err := eachOf(octets, 1, func(value []byte) error {
		version = string(value)
		return nil
	})
	return version, err
}

// ListReply's names of attachments.
func ListReply(octets []byte) ([]string, error) {
	var names []string
	err := eachOf(octets, 2, func(state []byte) error {
		return eachOf(state, 1, func(attachment []byte) error {
			return eachOf(attachment, 1, func(name []byte) error {
				names = append(names, string(name))
				return nil
			})
		})
	})
	return names, err
}
