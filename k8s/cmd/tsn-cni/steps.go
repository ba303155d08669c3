// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/cnistate"
	"ktsn.io/ktsn/k8s/internal/nodecall"
	"ktsn.io/ktsn/k8s/internal/podlink"
)

// A step of ADD. Undo works from the saved state alone and is content when there is nothing to undo, so it may follow a step that
// was never done, or done in part.
type step struct {
	name string
	do   func(*addition, context.Context) error
	undo func(context.Context, cnistate.Directory, *cnistate.State) error
}

// In the order of ADD. An attachment needs its interface, which needs its addresses.
var steps = []step{
	{"ipam", (*addition).askIPAM, undoIPAM},
	{"link", (*addition).makeLink, undoLink},
	{"attachment", (*addition).attach, undoAttachment},
}

// Point is where a test may end the process; nothing otherwise (fault.go).
var point = func(string) {}

// Patience with a ktsnd that does not answer while something is taken away: then it is owed. And with one that is not there: it may be
// starting again, which takes milliseconds.
const (
	detachPatience  = 25 * time.Second
	absencePatience = 300 * time.Millisecond
)

// Undo takes back all that ADD did, in reverse, whatever fails; the state goes last, and stays while anything is left.
func undo(ctx context.Context, directory cnistate.Directory, state *cnistate.State) error {
	var faults []error
	if state.Done {
		// From here on it is no finished attachment any more, if this run is killed. A full disk must not keep anything from being
		// taken back.
		state.Done = false
		_ = directory.Save(state)
	}
	for index := len(steps) - 1; index >= 0; index-- {
		point("undo " + steps[index].name)
		if err := steps[index].undo(ctx, directory, state); err != nil {
			faults = append(faults, fmt.Errorf("undo %s: %w", steps[index].name, err))
		}
	}
	point("undo state")
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

// UndoAttachment detaches; without ktsnd that is owed, and paid by the next run that finds it.
func undoAttachment(ctx context.Context, directory cnistate.Directory, state *cnistate.State) error {
	if state.Unattached {
		return nil
	}
	owed := cnistate.Owed{
		ContainerID: state.ContainerID, IfName: state.IfName, Attachment: state.Attachment, RunDir: state.RunDir,
	}
	if err := detach(ctx, owed); nodecall.IsAbsent(err) {
		return directory.Owe(owed)
	} else if err != nil {
		return err
	}
	directory.Settled(owed)
	return nil
}

func detach(ctx context.Context, attachment cnistate.Owed) error {
	daemon := nodecall.New(attachment.RunDir)
	defer daemon.Close()
	patience := detachPatience
	if !daemon.Present() {
		patience = absencePatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := daemon.Detach(ctx, attachment.Attachment)
	if nodecall.CodeOf(err) == codes.NotFound {
		return nil
	}
	return err
}

// PayOwed detaches what could not be detached when its pod went; all of it within a second, or as much as that allows.
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

// Pay is false when ktsnd does not answer. The lock of an interface that is the caller's own is held already.
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
	err := detach(ctx, owed)
	if err == nil {
		directory.Settled(owed)
	}
	return !nodecall.IsAbsent(err)
}
