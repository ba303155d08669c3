// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/podwatch"
)

// interfacesOf reads tsn-cni's states: the interfaces that it has attached. It leaves out a state that cannot be read, as tsn-cni reports
// such a state itself.
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
