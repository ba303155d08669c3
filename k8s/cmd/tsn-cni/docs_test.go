// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

const guide = "../../../docs/guide/kubernetes-cni.md"

var (
	wrongRow = regexp.MustCompile("(?m)^\\| `(.+?)` \\| (\\d+) \\| `(.+)` \\|$")
	section  = regexp.MustCompile("(?m)^### `([a-zA-Z_.]+)`\n(?s:(.*?))\n\nExample: `(.+)`$")
)

// Configured makes a call of a JSON fragment, or of CNI_ARGS, as the guide shows it.
func (w *world) configured(container, pod, shown string) call {
	w.t.Helper()
	c := call{verb: "ADD", container: container, netns: path(pod), ifName: "tsn0", stdin: w.conf(nil)}
	if args, given := strings.CutPrefix(shown, "CNI_ARGS "); given {
		c.args = args
		return c
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte("{"+shown+"}"), &fields); err != nil {
		w.t.Fatalf("%s: %v", shown, err)
	}
	c.stdin = w.conf(fields)
	return c
}

// Every error that the user's guide shows is what plugin and ktsnd say. With KTSN_UPDATE_GUIDE=1 the test writes what they say into the guide.
func TestErrorsOfTheGuide(t *testing.T) {
	content, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	rows := wrongRow.FindAllStringSubmatch(string(content), -1)
	if len(rows) < 80 {
		t.Fatalf("%d rows", len(rows))
	}
	fresh := string(content)
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	for _, row := range rows {
		shown, code, says := row[1], row[2], row[3]
		c := w.configured("c1", pod, shown)
		_, err := w.run(c)
		var cniError *types.Error
		if !errors.As(err, &cniError) {
			t.Errorf("%s: %v, expected an error", shown, err)
			c.verb = "DEL"
			w.must(c)
			continue
		}
		found := strings.ReplaceAll(strings.TrimPrefix(cniError.Msg, "invalid network configuration: "), w.runDir, "RUN_DIR")
		found = strings.ReplaceAll(found, filepath.Dir(plugin)+" "+debianPlugins, "CNI_PATH")
		if strconv.Itoa(int(cniError.Code)) != code || found != says {
			fresh = strings.Replace(fresh, row[0], fmt.Sprintf("| `%s` | %d | `%s` |", shown, cniError.Code, found), 1)
			t.Errorf("row: %s\n%d\n%s", shown, cniError.Code, found)
		}
	}
	w.nothingLeft()
	if os.Getenv("KTSN_UPDATE_GUIDE") != "" {
		if err := os.WriteFile(guide, []byte(fresh), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// Fields of tsn-cni's own; all others are the attachment's, and ktsnd knows them.
var ownFields = strings.Fields("args attach capabilities cniVersion deviceID dns ipam mac mtu name policies prevResult run_dir runtimeConfig state_dir type")

// Words of ktsnd's message about an unknown field that name no field.
var prose = strings.Fields("unknown field fields nonsense expected one of known are or the a at line column")

var lowerWord = regexp.MustCompile(`\b[a-z][a-z_]*\b`)

// known reads the fields that ktsnd names when it refuses the field "nonsense".
func (w *world) known(pod, prefix, shown string) map[string]bool {
	w.t.Helper()
	_, err := w.run(w.configured("c1", pod, shown))
	var refused *types.Error
	if !errors.As(err, &refused) {
		w.t.Fatalf("%s: %v", shown, err)
	}
	_, list, found := strings.Cut(refused.Msg, "nonsense")
	if !found {
		w.t.Fatalf("%s: the message names no field: %s", shown, refused.Msg)
	}
	known := map[string]bool{}
	for _, word := range lowerWord.FindAllString(list, -1) {
		if !slices.Contains(prose, word) {
			known[prefix+word] = true
		}
	}
	return known
}

// Every field has a section, which says its default or who writes it, and whose example has the right shape.
func TestSectionsOfTheGuide(t *testing.T) {
	content, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	var described []string
	for _, found := range section.FindAllStringSubmatch(string(content), -1) {
		name, text, example := found[1], found[2], found[3]
		described = append(described, name)
		if first, _, _ := strings.Cut(name, "."); !strings.Contains(example, `"`+first+`"`) {
			t.Errorf("%s: another field's example: %s", name, example)
		}
		if !strings.Contains(text, "Default: ") && !strings.Contains(text, "runtime") && !strings.Contains(text, "network's name") && name != "type" && name != "args" && name != "deviceID" {
			t.Errorf("%s: no default", name)
		}
		c := w.configured("c1", pod, example)
		c.verb = "CHECK" // which reads the configuration as ADD does, and needs no ktsnd
		_, err := w.run(c)
		var refused *types.Error
		if errors.As(err, &refused) && strings.HasPrefix(refused.Msg, "invalid network configuration: ") {
			t.Errorf("%s: the example is refused: %s", name, refused.Msg)
		}
	}
	known := w.known(pod, "", `"nonsense": 1`)
	for _, field := range []string{"name", "netns", "interface"} {
		if !known[field] {
			t.Errorf("ktsnd does not name %s", field)
		}
		delete(known, field) // tsn-cni sets it
	}
	maps.Copy(known, w.known(pod, "overlay.vxlan.", `"overlay": { "vxlan": { "nonsense": 1 } }`))
	for _, name := range ownFields {
		known[name] = true
	}
	slices.Sort(described)
	if want := slices.Sorted(maps.Keys(known)); !slices.Equal(want, described) {
		t.Errorf("described: %q\nknown:     %q", described, want)
	}
}
