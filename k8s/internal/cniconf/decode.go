// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Error names the field at fault, what it holds and what was expected.
type Error struct {
	Field string // path, as in overlay.vxlan.peers[0].mac
	Text  string
}

func (e *Error) Error() string { return e.Field + ": " + e.Text }

func fault(path, format string, values ...any) error {
	return &Error{Field: path, Text: fmt.Sprintf(format, values...)}
}

// Longest value that an error repeats.
const shownMax = 60

func shown(raw json.RawMessage) string {
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > shownMax {
		text = strings.ToValidUTF8(text[:shownMax], "") + "…"
	}
	return text
}

// A decoder puts one JSON value where it belongs.
type decoder func(path string, raw json.RawMessage) error

// Fields of one JSON object; names are compared exactly, other than by encoding/json's structs.
type fields map[string]decoder

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Object decodes all keys of an object in their order of the alphabet; one that nobody knows is an error, unless `others` takes it.
func (f fields) object(path string, raw json.RawMessage, others func(key string) bool) error {
	values, err := objectOf(path, raw)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		decode, known := f[key]
		switch {
		case known:
			if err := decode(join(path, key), values[key]); err != nil {
				return err
			}
		case others == nil || !others(key):
			return fault(join(path, key), "unknown field; known are %s", strings.Join(slices.Sorted(maps.Keys(f)), ", "))
		}
	}
	return nil
}

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

// Exactly decodes one JSON value of Go's type T; null is no value.
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

// Word is text out of a list.
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

func boolean(to **bool) decoder {
	return func(path string, raw json.RawMessage) error {
		value, err := exactly[bool](path, raw, "true or false")
		*to = &value
		return err
	}
}

// Integer between two numbers that fit into the message's type; the closer bounds are ktsnd's.
func integer[T uint32 | uint64](least, most T, store func(T)) decoder {
	return func(path string, raw json.RawMessage) error {
		expected := fmt.Sprintf("a whole number from %d to %d", least, most)
		value, err := exactly[T](path, raw, expected)
		if err == nil && (value < least || value > most) {
			return fault(path, "%s; expected %s", shown(raw), expected)
		}
		store(value)
		return err
	}
}

// Span in nanoseconds, written as in "300us" or "1.5ms".
func span(to *uint64) decoder {
	return func(path string, raw json.RawMessage) error {
		const expected = `a time above 0, as in "1ms" or "300us"`
		value, err := exactly[string](path, raw, expected)
		if err != nil {
			return err
		}
		duration, err := time.ParseDuration(value)
		if err != nil || duration <= 0 {
			return fault(path, "%s; expected %s", shown(raw), expected)
		}
		*to = uint64(duration)
		return nil
	}
}

// List of at least one value; what no value at all means is the default's business.
func list[T any](to *[]T, expected string) decoder {
	return func(path string, raw json.RawMessage) error {
		values, err := exactly[[]json.RawMessage](path, raw, "a list of "+expected)
		if err != nil {
			return err
		}
		if len(values) == 0 {
			return fault(path, "empty; leave it out for its default")
		}
		for index, raw := range values {
			value, err := exactly[T](fmt.Sprintf("%s[%d]", path, index), raw, expected)
			if err != nil {
				return err
			}
			*to = append(*to, value)
		}
		return nil
	}
}
