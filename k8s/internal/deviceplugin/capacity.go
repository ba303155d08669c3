// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"strconv"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
)

// Capacity says how many slots a node offers. The rule, where --capacity is "auto":
//
// One slot is one frame of SlotOctets each cycle, in a window that the gate schedule keeps for scheduled classes:
// those above class 0 (best effort) whose gate is closed in a part of the cycle and open in another. Each entry of the control list in which such
// a gate is open holds as many slots as frames of that length fit into its interval, one after the other, each with its
// hand-over time: that is what guard bands keep free. All entries of a cycle add up. Without a schedule, or where the
// link's speed is unknown, or no class is scheduled, there is no promise, and the node offers Unscheduled.
type Capacity struct {
	// Fixed is the number of --capacity; 0 = auto.
	Fixed int
	// Unscheduled is the number of slots of a port without windows.
	Unscheduled int
	// SlotOctets is the longest frame that a slot has room for, MAC header and FCS included.
	SlotOctets int
}

// gapOctets follow or go before each frame on the wire: preamble 8, gap 12.
const gapOctets = 20

// ParseCapacity reads the value of --capacity.
func ParseCapacity(text string) (int, error) {
	if text == "" || text == "auto" {
		return 0, nil
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 || count > DevicesMax {
		return 0, fmt.Errorf("--capacity: found %q, expected auto or a number from 1 to %d", text, DevicesMax)
	}
	return count, nil
}

// Of computes the slots of a port. A schedule that is asked for counts before the one in force: pods that are placed
// now live with it. `state` may be nil: nothing is known of the port.
func (c Capacity) Of(state *nodeapi.ScheduleState) int {
	if c.Fixed > 0 {
		return c.Fixed
	}
	parameters := state.GetAdmin()
	if parameters == nil {
		parameters = state.GetOper()
	}
	speed := state.GetLinkSpeed()
	if !parameters.GetGateEnabled() || speed == 0 || len(parameters.GetControlList()) == 0 {
		return c.Unscheduled
	}
	scheduled := scheduledClasses(parameters.GetControlList())
	if scheduled == 0 {
		return c.Unscheduled
	}
	const second = 1_000_000_000
	octets := uint64(max(c.SlotOctets, 64) + gapOctets)
	slot := (octets*8*second+speed-1)/speed + state.GetHandOverNs()
	var slots, passed uint64
	for _, entry := range parameters.GetControlList() {
		interval := entry.GetTimeIntervalValue()
		// The cycle's end cuts the list off.
		if cycle := parameters.GetCycleTime(); cycle > 0 {
			interval = min(interval, cycle-min(passed, cycle))
		}
		passed += interval
		if entry.GetGateStatesValue()&scheduled != 0 {
			slots += interval / slot
		}
	}
	return int(min(slots, DevicesMax))
}

// scheduledClasses are those above class 0 with a gate that both opens and closes within a cycle.
func scheduledClasses(entries []*nodeapi.GateControlEntry) uint32 {
	var opened, closed uint32
	for _, entry := range entries {
		opened |= entry.GetGateStatesValue() & 0xff
		closed |= ^entry.GetGateStatesValue() & 0xff
	}
	return opened & closed &^ 1
}
