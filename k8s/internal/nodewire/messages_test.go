// SPDX-License-Identifier: Apache-2.0

package nodewire

import (
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"ktsn.io/ktsn/k8s/internal/nodepb"
)

// Fill gives the exported fields of a message different values, and the fields of the same names of its double the same ones. A field
// that the double does not have, or has of another type, fails.
func fill(t *testing.T, message, double reflect.Value, next *int) {
	t.Helper()
	exported := 0
	for index := range message.NumField() {
		field := message.Type().Field(index)
		if !field.IsExported() {
			continue
		}
		exported++
		to := double.FieldByName(field.Name)
		if !to.IsValid() {
			t.Fatalf("%s: no field %s", double.Type(), field.Name)
		}
		fillValue(t, message.Field(index), to, next)
	}
	if double.NumField() != exported {
		t.Fatalf("%s: %d fields, the message has %d", double.Type(), double.NumField(), exported)
	}
}

func fillValue(t *testing.T, value, double reflect.Value, next *int) {
	t.Helper()
	*next++
	switch value.Kind() {
	case reflect.String:
		text := string(rune('a'+*next%26)) + "é\x00" + string(rune('a'+*next/26))
		value.SetString(text)
		double.SetString(text)
	case reflect.Uint32, reflect.Uint64:
		number := uint64(*next) << (*next % 24) & (1<<32 - 1)
		value.SetUint(number)
		double.SetUint(number)
	case reflect.Bool:
		value.SetBool(*next%2 == 0)
		double.SetBool(*next%2 == 0)
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		double.Set(reflect.New(double.Type().Elem()))
		if value.Elem().Kind() == reflect.Struct {
			fill(t, value.Elem(), double.Elem(), next)
		} else {
			fillValue(t, value.Elem(), double.Elem(), next)
		}
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 3, 3))
		double.Set(reflect.MakeSlice(double.Type(), 3, 3))
		for index := range 3 {
			fillValue(t, value.Index(index), double.Index(index), next)
		}
	default:
		t.Fatalf("%s: a kind of field that this test does not know", value.Type())
	}
}

func sent(t *testing.T, double *Attachment) *nodepb.Attachment {
	t.Helper()
	request := &nodepb.AttachRequest{}
	if err := proto.Unmarshal(AttachRequest(double), request); err != nil {
		t.Fatal(err)
	}
	if unknown := request.GetAttachment().ProtoReflect().GetUnknown(); len(unknown) > 0 {
		t.Fatalf("fields that the API does not have: %x", unknown)
	}
	return request.GetAttachment()
}

// Every field of the API has its place here, with its number and its type; a new one fails this test.
func TestEveryFieldArrives(t *testing.T) {
	for round := range 50 {
		message, double, next := &nodepb.Attachment{}, &Attachment{}, round*7
		fill(t, reflect.ValueOf(message).Elem(), reflect.ValueOf(double).Elem(), &next)
		if got := sent(t, double); !proto.Equal(got, message) {
			t.Fatalf("%v\nexpected\n%v", got, message)
		}
	}
	if got := sent(t, &Attachment{}); got == nil || !proto.Equal(got, &nodepb.Attachment{}) {
		t.Errorf("%v", got)
	}
	// Absent and zero are not the same where the API says so.
	no, zero := false, uint32(0)
	got := sent(t, &Attachment{AllowTai: &no, Vlan: &zero, Vxlan: &Vxlan{UdpChecksum: &no}, Classes: []uint32{0}, Destinations: []string{""}})
	if got.AllowTai == nil || got.Vlan == nil || got.Pcp != nil || got.GetVxlan().UdpChecksum == nil || len(got.Classes) != 1 || len(got.Destinations) != 1 {
		t.Errorf("%v", got)
	}
	detach := &nodepb.DetachRequest{}
	if err := proto.Unmarshal(DetachRequest("c1/net1"), detach); err != nil || detach.GetName() != "c1/net1" {
		t.Errorf("%v, %v", detach, err)
	}
}

func TestAnswersAreRead(t *testing.T) {
	octets := func(message proto.Message) []byte {
		found, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	version, err := VersionReply(octets(&nodepb.VersionReply{Version: "1.2.3", RingAbiMin: 1, RingAbiMax: 300}))
	if err != nil || version != "1.2.3" {
		t.Errorf("%q, %v", version, err)
	}
	list := &nodepb.ListReply{Ports: []*nodepb.Port{{Device: "eth1", LinkSpeed: 1 << 40, Up: true}}}
	for _, name := range []string{"c1/net1", "c2/net1", "c3/é"} {
		state := &nodepb.Attachment{}
		next := 3
		fill(t, reflect.ValueOf(state).Elem(), reflect.ValueOf(&Attachment{}).Elem(), &next)
		state.Name = name
		list.Attachments = append(list.Attachments, &nodepb.AttachmentState{
			Attachment: state, RulesCount: 7, Clients: []*nodepb.Client{{Pid: 7, Streams: []*nodepb.Stream{{Cookie: 1 << 60}}}},
		})
	}
	names, err := ListReply(octets(list))
	if err != nil || !slices.Equal(names, []string{"c1/net1", "c2/net1", "c3/é"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, empty := range [][]byte{nil, octets(&nodepb.ListReply{})} {
		if names, err := ListReply(empty); len(names) != 0 || err != nil {
			t.Errorf("%q, %v", names, err)
		}
	}
}

// Whatever comes as an answer: names or an error, and both as protobuf's own library finds them.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("\x0a\x05hello"))
	f.Add([]byte("\x12\x04\x0a\x02\x0a\x00"))
	f.Add([]byte{0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x08, 0x96, 0x01})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, octets []byte) {
		version, err := VersionReply(octets)
		expected := &nodepb.VersionReply{}
		if proto.Unmarshal(octets, expected) == nil && err == nil && version != expected.GetVersion() {
			t.Errorf("version %q, expected %q", version, expected.GetVersion())
		}
		names, err := ListReply(octets)
		list := &nodepb.ListReply{}
		if proto.Unmarshal(octets, list) != nil || err != nil {
			return
		}
		for _, state := range list.GetAttachments() {
			name := state.GetAttachment().GetName()
			if name != "" && !slices.Contains(names, name) {
				t.Errorf("no name %q in %q", name, names)
			}
		}
	})
}
