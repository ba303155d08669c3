// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/podwatch"
)

// interfacesOf reads which interfaces tsn-cni attached, from its states. One that cannot be read is left out: tsn-cni itself
// tells of it, and here it only means that less is known.
func interfacesOf(directory string) []podwatch.Interface {
	states, _ := cnistate.Open(directory).List()
	var found []podwatch.Interface
	for _, state := range states {
		if state.Attachment != "" {
			found = append(found, podwatch.Interface{
				Namespace: state.Pod.Namespace, Pod: state.Pod.Name, Attachment: state.Attachment, Capture: state.Capture,
			})
		}
	}
	return found
}
