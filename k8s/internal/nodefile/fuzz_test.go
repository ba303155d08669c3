// SPDX-License-Identifier: Apache-2.0

package nodefile

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// A node.json of any contents is refused, or reads the same when it was written again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"node":"n","prefixes":["10.99.1.0/24"],"cidrs":["10.99.0.0/16"],"mtu":1450,"vxlan_device":"v","uplink":"u","capacity":64,"ready":true}`))
	f.Add([]byte(`{"ready":false,"reason":"x","prefixes":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), Name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		node, err := Read(path)
		if err != nil {
			return
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, node); err != nil {
			t.Fatal(err)
		}
		if again, err := Read(path); err != nil || !reflect.DeepEqual(again, node) {
			t.Fatalf("%+v read again as %+v, %v", node, again, err)
		}
	})
}
