// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"reflect"
	"slices"
	"testing"
)

// The names that this package reads are keys of ktsnd's schema.
func TestAttachmentReadsKeysOfTheSchema(t *testing.T) {
	keys := AttachmentKeys()
	if len(keys) < 20 || keys[0] != "name" {
		t.Fatalf("%q", keys)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Attachment]()) {
		if key := field.Tag.Get("json"); !slices.Contains(keys, key) {
			t.Errorf("%s: the schema has no key %q", field.Name, key)
		}
	}
}
