// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
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

// Every error that the user's guide shows is what plugin and ktsnd say.
func TestErrorsOfTheGuide(t *testing.T) {
	content, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	rows := wrongRow.FindAllStringSubmatch(string(content), -1)
	if len(rows) < 80 {
		t.Fatalf("%d rows", len(rows))
	}
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	for _, row := range rows {
		shown, code, says := row[1], row[2], row[3]
		_, err := w.run(w.configured("c1", pod, shown))
		var told *types.Error
		if !errors.As(err, &told) {
			t.Errorf("%s: %v, expected an error", shown, err)
			continue
		}
		found := strings.ReplaceAll(strings.TrimPrefix(told.Msg, "invalid network configuration: "), w.runDir, "RUN_DIR")
		found = strings.ReplaceAll(found, filepath.Dir(plugin)+" "+debianPlugins, "CNI_PATH")
		if strconv.Itoa(int(told.Code)) != code || found != says {
			t.Errorf("row: %s\n%d\n%s", shown, told.Code, found)
		}
	}
	w.nothingLeft()
}

// Every field has a section, which says its default or who writes it, and whose example is accepted as to its shape.
func TestSectionsOfTheGuide(t *testing.T) {
	content, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
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
		var told *types.Error
		if errors.As(err, &told) && strings.HasPrefix(told.Msg, "invalid network configuration: ") {
			t.Errorf("%s: the example is refused: %s", name, told.Msg)
		}
	}
	// The list that the plugin itself gives.
	_, err = w.run(w.configured("c1", pod, `"nonsense": 1`))
	var told *types.Error
	if !errors.As(err, &told) {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(told.Msg, "known are ")
	_, err = w.run(w.configured("c1", pod, `"overlay": { "vxlan": { "nonsense": 1 } }`))
	if !errors.As(err, &told) {
		t.Fatal(err)
	}
	_, inner, _ := strings.Cut(told.Msg, "known are ")
	known := map[string]bool{}
	for _, name := range strings.Split(list, ", ") {
		known[name] = true
	}
	for _, name := range strings.Split(inner, ", ") {
		known["overlay.vxlan."+name] = true
	}
	delete(known, "pciBusID") // with deviceID
	if want := slices.Sorted(maps.Keys(known)); len(want) < 40 || !slices.Equal(want, slices.Sorted(slices.Values(described))) {
		t.Errorf("described: %q\nknown:     %q", slices.Sorted(slices.Values(described)), want)
	}
}
