// SPDX-License-Identifier: Apache-2.0

package overlaynet

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for index, text := range texts {
		list[index] = netip.MustParsePrefix(text)
	}
	return list
}

func member(node string, age int, address string, claims ...string) Member {
	return Member{
		Node: node, Created: time.Unix(int64(1000-age), 0), Address: netip.MustParseAddr(address),
		MAC: MACOf(node, 1588), VNI: 1588, Port: 4789, Prefixes: prefixes(claims...),
	}
}

func TestTheOlderNodeWins(t *testing.T) {
	cidrs := prefixes("10.99.0.0/16", "fd99::/48")
	young := member("young", 1, "192.0.2.1", "10.99.1.0/24", "10.99.3.0/24", "fd99:0:0:3::/64")
	old := member("old", 9, "192.0.2.2", "10.99.0.0/23")
	same := member("same", 1, "192.0.2.1", "10.99.9.0/24")
	outside := member("zzz", 5, "192.0.2.4", "0.0.0.0/1", "10.0.0.0/8", "10.99.4.0/24")
	other := member("other", 7, "192.0.2.5", "10.99.5.0/24")
	other.VNI = 1
	want := []string{
		"node other uses VNI 1 and port 4789, this network 1588 and 4789: its agent has other flags",
		"node zzz: 0.0.0.0/1 is not a part of the TSN network (--tsn-cidr)",
		"node zzz: 10.0.0.0/8 is not a part of the TSN network (--tsn-cidr)",
		"node young has the address or the MAC address of node same, which is older",
	}
	admitted, conflicts := Admit([]Member{young, old, same, outside, other}, cidrs, 1588, 4789)
	if !reflect.DeepEqual(conflicts, want) {
		t.Errorf("conflicts: %s", strings.Join(conflicts, "\n"))
	}
	if len(admitted) != 3 || admitted[0].Node != "old" || !reflect.DeepEqual(admitted[1].Prefixes, prefixes("10.99.4.0/24")) {
		t.Errorf("admitted: %+v", admitted)
	}
	admitted, conflicts = Admit([]Member{young, old}, cidrs, 1588, 4789)
	if len(conflicts) != 1 || conflicts[0] != "node young: 10.99.1.0/24 is claimed by node old too, which is older" ||
		!reflect.DeepEqual(admitted[1].Prefixes, prefixes("10.99.3.0/24", "fd99:0:0:3::/64")) {
		t.Errorf("%v, %+v", conflicts, admitted)
	}
	// Who asks first must not matter.
	again, told := Admit([]Member{old, young}, cidrs, 1588, 4789)
	if !reflect.DeepEqual(again, admitted) || !reflect.DeepEqual(told, conflicts) {
		t.Error("the order of the list decides")
	}
}

func TestParseVTEP(t *testing.T) {
	good := VTEP{
		Address: "192.0.2.1", MAC: "02:00:00:00:00:01", VNI: 1588, Port: 4789, MTU: 1450, Prefixes: []string{"10.99.1.0/24"},
	}
	got, err := ParseVTEP(good.Annotation())
	if err != nil || got.Address.String() != good.Address || got.MAC.String() != good.MAC || got.VNI != 1588 ||
		!reflect.DeepEqual(got.Prefixes, prefixes("10.99.1.0/24")) {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"empty":               "",
		"no JSON":             "{",
		"too long":            `{"address":"` + strings.Repeat("1", annotationMax) + `"}`,
		"no address":          `{"mac":"02:00:00:00:00:01"}`,
		"loopback":            `{"address":"127.0.0.1","mac":"02:00:00:00:00:01"}`,
		"multicast":           `{"address":"239.1.1.1","mac":"02:00:00:00:00:01"}`,
		"link-local":          `{"address":"fe80::1","mac":"02:00:00:00:00:01"}`,
		"with a zone":         `{"address":"fd00::1%eth0","mac":"02:00:00:00:00:01"}`,
		"mapped":              `{"address":"::ffff:192.0.2.1","mac":"02:00:00:00:00:01"}`,
		"no MAC":              `{"address":"192.0.2.1"}`,
		"group MAC":           `{"address":"192.0.2.1","mac":"03:00:00:00:00:01"}`,
		"zero MAC":            `{"address":"192.0.2.1","mac":"00:00:00:00:00:00"}`,
		"EUI-64":              `{"address":"192.0.2.1","mac":"02:00:00:00:00:00:00:01"}`,
		"prefix is none":      `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":["10.99.1.0"]}`,
		"prefix of a host":    `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":["10.99.1.7/24"]}`,
		"everything":          `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":["0.0.0.0/0"]}`,
		"groups":              `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":["224.0.0.0/4"]}`,
		"prefixes of a wrong": `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":"10.99.1.0/24"}`,
		"too many": `{"address":"192.0.2.1","mac":"02:00:00:00:00:01","prefixes":[` +
			strings.Repeat(`"10.99.1.0/24",`, prefixesMax) + `"10.99.1.0/24"]}`,
	} {
		if got, err := ParseVTEP(text); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		} else if !strings.HasPrefix(err.Error(), AnnotationVTEP) {
			t.Errorf("%s: %v does not say where", name, err)
		}
	}
}

func TestParsePrefixes(t *testing.T) {
	got, err := ParsePrefixes("x", " 10.99.1.0/24, fd99:0:0:1::/64,10.99.1.0/24 ")
	if err != nil || !reflect.DeepEqual(got, prefixes("10.99.1.0/24", "fd99:0:0:1::/64")) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParsePrefixes("x", "  "); err != nil || got != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, text := range []string{",", "10.99.1.0/24,", "10.99.1.1/24", "here", "127.0.0.0/8", "::ffff:10.0.0.0/104"} {
		if _, err := ParsePrefixes("--tsn-cidr", text); err == nil || !strings.HasPrefix(err.Error(), "--tsn-cidr: found") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestMACOfIsAStations(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{"", "a", "b", "kn1", "kn2", strings.Repeat("x", 253)} {
		mac := MACOf(node, 1588)
		if len(mac) != 6 || mac[0]&3 != 2 || seen[mac.String()] || mac.String() != MACOf(node, 1588).String() {
			t.Errorf("%q: %s", node, mac)
		}
		seen[mac.String()] = true
	}
	if MACOf("a", 1).String() == MACOf("a", 2).String() {
		t.Error("two networks of one node share a MAC address")
	}
}

// What other nodes wrote is never more than refused, and what is accepted is inside the network.
func FuzzParseVTEP(f *testing.F) {
	f.Add(`{"address":"192.0.2.1","mac":"02:00:00:00:00:01","vni":1588,"port":4789,"prefixes":["10.99.1.0/24"]}`)
	f.Add(`{"address":"fd00::1","mac":"02-00-00-00-00-01","vni":1588,"port":4789,"prefixes":["fd99::/64"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseVTEP(text)
		if err != nil {
			return
		}
		cidrs := prefixes("10.99.0.0/16", "fd99::/48")
		admitted, _ := Admit([]Member{got}, cidrs, 1588, 4789)
		for _, one := range admitted {
			for _, prefix := range one.Prefixes {
				if !within(cidrs, prefix) {
					t.Errorf("%s claims %s", text, prefix)
				}
			}
		}
	})
}
