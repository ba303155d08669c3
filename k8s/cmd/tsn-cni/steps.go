// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// step of ADD. Undo works from the saved state alone. It succeeds when there is nothing to undo, so it may follow a step that was not done, or
// done in part.
type step struct {
	name string
	do   func(*addition, context.Context) error
	undo func(context.Context, cnistate.Directory, *cnistate.State) error
}

// In the order of ADD. An attachment needs an interface with its addresses. IPAM may need the link, to ask for an address and to give it back;
// the node has no route to an address any more before IPAM can give the address to another pod.
var steps = []step{
	{"link", (*addition).makeLink, undoLink},
	{"ipam", (*addition).askIPAM, undoIPAM},
	{"addresses", (*addition).configureLink, undoAddresses},
	{"attachment", (*addition).attach, undoAttachment},
}

// testKillPoint is called where a test may kill the process (fault.go).
var testKillPoint = func(string) {}

// detachPatience is how long Detach waits for ktsnd; after it the detachment is owed. absencePatience is how long a call waits for a ktsnd that does
// not listen: it may be restarting, which takes milliseconds.
const (
	detachPatience  = 25 * time.Second
	absencePatience = 500 * time.Millisecond
)

// undo takes back all steps in reverse order. It goes on after an error. It removes the state file last, and only when nothing is left.
func undo(ctx context.Context, directory cnistate.Directory, state *cnistate.State) error {
	var faults []error
	if state.Done {
		// If this run is killed, the state file must not say that the attachment is finished. A full disk must not stop the undo.
		state.Done = false
		_ = directory.Save(state)
	}
	for index := len(steps) - 1; index >= 0; index-- {
		testKillPoint("undo " + steps[index].name)
		if err := steps[index].undo(ctx, directory, state); err != nil {
			faults = append(faults, fmt.Errorf("undo %s: %w", steps[index].name, err))
		}
	}
	testKillPoint("undo state")
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return directory.Remove(state.ContainerID, state.IfName)
}

func undoLink(_ context.Context, _ cnistate.Directory, state *cnistate.State) error {
	if state.HostInterface == "" {
		return nil
	}
	return podlink.Delete(state.HostInterface)
}

func undoAddresses(_ context.Context, _ cnistate.Directory, state *cnistate.State) error {
	if state.HostInterface == "" {
		return nil
	}
	return podlink.Unroute(state.HostInterface)
}

// undoAttachment detaches. Without ktsnd the detachment is owed: the next run that finds it makes it.
func undoAttachment(ctx context.Context, directory cnistate.Directory, state *cnistate.State) error {
	if state.Unattached {
		return nil
	}
	owed := cnistate.Owed{
		ContainerID: state.ContainerID, IfName: state.IfName, Attachment: state.Attachment, RunDir: state.RunDir,
	}
	if err := detach(ctx, owed, absencePatience); nodeapi.IsAbsent(err) {
		return directory.Owe(owed)
	} else if err != nil {
		return err
	}
	directory.Settled(owed)
	return nil
}

func detach(ctx context.Context, attachment cnistate.Owed, absence time.Duration) error {
	daemon := nodeapi.New(attachment.RunDir)
	daemon.AbsencePatience = absence
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(ctx, detachPatience)
	defer cancel()
	_, err := daemon.Detach(ctx, &nodeapi.DetachRequest{Name: attachment.Attachment})
	if nodeapi.CodeOf(err) == codes.NotFound {
		return nil
	}
	return err
}

// payOwed makes owed detachments, for at most one second.
func payOwed(ctx context.Context, directory cnistate.Directory, runDir, containerID, ifName string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, owed := range directory.Owed() {
		if owed.RunDir != runDir {
			continue
		}
		if !pay(ctx, directory, owed, owed.ContainerID == containerID && owed.IfName == ifName) {
			return
		}
	}
}

// pay returns false when ktsnd does not answer. The caller holds the lock of its own interface already.
func pay(ctx context.Context, directory cnistate.Directory, owed cnistate.Owed, isOwn bool) bool {
	if !isOwn {
		unlock, err := directory.TryLock(owed.ContainerID, owed.IfName)
		if err != nil {
			return true
		}
		defer unlock()
		if state, err := directory.Load(owed.ContainerID, owed.IfName); state != nil || err != nil {
			directory.Settled(owed) // the name is in use again
			return true
		}
	}
	err := detach(ctx, owed, absencePatience)
	if err == nil {
		directory.Settled(owed)
	}
	return !nodeapi.IsAbsent(err)
}
