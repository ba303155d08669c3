// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Error names a wrong field, its value and the expected value.
type Error struct {
	Field string // path, as in overlay.vxlan.peers[0].mac
	Text  string
}

func (e *Error) Error() string { return e.Field + ": " + e.Text }

func fault(path, format string, values ...any) error {
	return &Error{Field: path, Text: fmt.Sprintf(format, values...)}
}

// Length in octets up to which an error repeats a value.
const shownMax = 60

func shown(raw json.RawMessage) string {
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > shownMax {
		text = strings.ToValidUTF8(text[:shownMax], "") + "…"
	}
	return text
}

// A decoder stores one JSON value.
type decoder func(path string, raw json.RawMessage) error

// Fields of one JSON object. Their names are compared exactly, unlike those of encoding/json's structs.
type fields map[string]decoder

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// object decodes an object's keys in alphabetical order; others takes each key that is not in f.
func (f fields) object(path string, raw json.RawMessage, others func(key string, raw json.RawMessage) error) error {
	values, err := objectOf(path, raw)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if decode, known := f[key]; known {
			err = decode(join(path, key), values[key])
		} else {
			err = others(key, values[key])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func pass(string, json.RawMessage) error { return nil }

func objectOf(path string, raw json.RawMessage) (map[string]json.RawMessage, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil || values == nil {
		if path == "" {
			path = "configuration"
		}
		return nil, fault(path, "%s; expected an object", shown(raw))
	}
	return values, nil
}

// exactly decodes one JSON value into Go's type T; it refuses null.
func exactly[T any](path string, raw json.RawMessage, expected string) (T, error) {
	var value T
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) || json.Unmarshal(raw, &value) != nil {
		return value, fault(path, "%s; expected %s", shown(raw), expected)
	}
	return value, nil
}

func text(to *string) decoder {
	return func(path string, raw json.RawMessage) error {
		value, err := exactly[string](path, raw, "text")
		if err == nil && value == "" {
			return fault(path, "empty; leave it out for its default")
		}
		*to = value
		return err
	}
}

// word takes one of these texts.
func word(to *string, words ...string) decoder {
	return func(path string, raw json.RawMessage) error {
		expected := strings.Join(words, " or ")
		value, err := exactly[string](path, raw, expected)
		if err == nil && !slices.Contains(words, value) {
			return fault(path, "%s; expected %s", shown(raw), expected)
		}
		*to = value
		return err
	}
}
