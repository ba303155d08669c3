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

const (
	guide      = "../../../docs/guide/kubernetes-cni.md"
	fieldsFile = "testdata/fields.txt"
)

var (
	wrongLine   = regexp.MustCompile(`(?m)^wrong (\d+) (.+?) => (.+)$`)
	exampleLine = regexp.MustCompile("(?m)^field ([a-zA-Z_.]+)\nexample (.+)$")
	tableRow    = regexp.MustCompile("(?m)^\\|([^|\n]*)\\|.*\\|([^|\n]*)\\|$")
	rowName     = regexp.MustCompile("`([a-zA-Z_]+)`")
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

// Every wrong value is refused with the code and the message of its line. With KTSN_UPDATE_FIELDS=1 the test writes what plugin and ktsnd say.
func TestErrorsOfTheFields(t *testing.T) {
	content, err := os.ReadFile(fieldsFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := wrongLine.FindAllStringSubmatch(string(content), -1)
	if len(lines) < 80 {
		t.Fatalf("%d lines", len(lines))
	}
	fresh := string(content)
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	for _, line := range lines {
		code, shown, says := line[1], line[2], line[3]
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
			fresh = strings.Replace(fresh, line[0], fmt.Sprintf("wrong %d %s => %s", cniError.Code, shown, found), 1)
			t.Errorf("line: %s\n%d\n%s", shown, cniError.Code, found)
		}
	}
	w.nothingLeft()
	if os.Getenv("KTSN_UPDATE_FIELDS") != "" {
		if err := os.WriteFile(fieldsFile, []byte(fresh), 0o644); err != nil {
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

// Documented reads the fields of a page's tables: a row's first cell has names, its last one the default or who writes the field.
func documented(t *testing.T, text string) []string {
	t.Helper()
	var names []string
	for _, row := range tableRow.FindAllStringSubmatch(text, -1) {
		for _, name := range rowName.FindAllStringSubmatch(row[1], -1) {
			names = append(names, name[1])
			if strings.TrimSpace(row[2]) == "" {
				t.Errorf("%s: no default", name[1])
			}
		}
	}
	return names
}

// Part of a page, from one line to the next of another text.
func part(t *testing.T, page, from, to string) string {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, isThere := strings.Cut(string(content), "\n"+from)
	text, _, ends := strings.Cut(rest, "\n"+to)
	if !isThere || !ends {
		t.Fatalf("%s: no part from %q to %q", page, from, to)
	}
	return text
}

// Every field has an example of the right shape. Those of tsn-cni's own have a row with their default in the guide; scripts/checks/tables.py
// looks after the attachment's.
func TestFieldsAreDocumented(t *testing.T) {
	content, err := os.ReadFile(fieldsFile)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.startDaemon()
	pod := namespace(t)
	var examples []string
	for _, found := range exampleLine.FindAllStringSubmatch(string(content), -1) {
		name, example := found[1], found[2]
		examples = append(examples, name)
		if first, _, _ := strings.Cut(name, "."); !strings.Contains(example, `"`+first+`"`) {
			t.Errorf("%s: another field's example: %s", name, example)
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
	maps.Copy(known, w.known(pod, "overlay.vxlan.", `"overlay": { "vxlan": { "nonsense": 1 } }`))
	own := documented(t, part(t, guide, "## Fields of its own", "## Fields with another default"))
	slices.Sort(own)
	if !slices.Equal(ownFields, own) {
		t.Errorf("in %s: %q\nown: %q", guide, own, ownFields)
	}
	for _, field := range []string{"name", "netns", "interface"} {
		delete(known, field) // tsn-cni sets it
	}
	for _, name := range ownFields {
		known[name] = true
	}
	slices.Sort(examples)
	if want := slices.Sorted(maps.Keys(known)); !slices.Equal(want, examples) {
		t.Errorf("with an example: %q\nknown:           %q", examples, want)
	}
}
