// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// Values are the defaults with those of the files, then of the assignments NAME=VALUE. A fault names the file or the assignment, the
// value, and what was expected.
func (c *Chart) Values(files, assignments []string) (map[string]any, error) {
	data, err := folder.ReadFile("ktsn/values.yaml")
	if err != nil {
		return nil, err
	}
	values, err := chartutil.ReadValues(data)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		given, err := fromFile(file)
		if err == nil {
			err = override(values, c.loaded.Values, given, "")
		}
		if err != nil {
			return nil, fmt.Errorf("--values %s: %w", file, err)
		}
	}
	for _, text := range assignments {
		given, err := assigned(text)
		if err == nil {
			err = override(values, c.loaded.Values, given, "")
		}
		if err != nil {
			return nil, fmt.Errorf("--set %w", err)
		}
	}
	return values, nil
}

func fromFile(file string) (map[string]any, error) {
	data, err := os.ReadFile(file)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return nil, failed.Err
	}
	var given any
	if err := yaml.UnmarshalStrict(data, &given); err != nil {
		return nil, err
	}
	switch given := given.(type) {
	case nil:
		return nil, nil
	case map[string]any:
		return given, nil
	}
	return nil, fmt.Errorf("found %s, expected values by their names", shown(given))
}

// assigned is NAME=VALUE with Helm's types: true, false, null and whole numbers are no texts. A comma is part of the value.
func assigned(text string) (map[string]any, error) {
	name, value, is := strings.Cut(text, "=")
	if !is || slices.Contains(strings.Split(name, "."), "") {
		return nil, fmt.Errorf("%q: expected NAME=VALUE, such as agent.log=debug", text)
	}
	given, err := strvals.Parse(name + "=" + strings.NewReplacer(`\`, `\\`, `,`, `\,`, `{`, `\{`).Replace(value))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return given, nil
}

// override replaces values. A name that the chart's defaults do not have is a fault, and a value of another kind; node selectors, labels
// and resources have open names.
func override(values, defaults, given map[string]any, path string) error {
	isOpen := path != "" && len(defaults) == 0 || slices.Contains(strings.Split(path, "."), "resources")
	for _, name := range slices.Sorted(maps.Keys(given)) {
		below := strings.TrimPrefix(path+"."+name, ".")
		known, is := defaults[name]
		value := given[name]
		expected := kind(known)
		if value == nil && expected == text {
			value = "" // `uplink:` alone
		}
		found := kind(value)
		if expected == text && (found == number || found == truth) {
			found = text // 16 where the default is auto
			if !isOpen {
				value = shown(value)
			}
		}
		if !is && !isOpen {
			return fmt.Errorf("%s: the chart has no such value; there are %s", below, strings.Join(slices.Sorted(maps.Keys(defaults)), ", "))
		}
		if is && expected != found {
			return fmt.Errorf("%s: found %s, expected %s", below, shown(value), expected)
		}
		inner, isTable := known.(map[string]any)
		if !isTable {
			values[name] = value
		} else if err := override(values[name].(map[string]any), inner, value.(map[string]any), below); err != nil {
			return err
		}
	}
	return nil
}

const (
	table  = "values below it"
	list   = "a list"
	truth  = "true or false"
	number = "a number"
	text   = "a text"
)

func kind(value any) string {
	switch value.(type) {
	case map[string]any:
		return table
	case []any:
		return list
	case bool:
		return truth
	case float64, int64:
		return number
	case string:
		return text
	}
	return ""
}

func shown(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
