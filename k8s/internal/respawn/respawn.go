// SPDX-License-Identifier: Apache-2.0

// Package respawn is ktsn-respawn, process 1 of ktsnd's container: it starts the program again within milliseconds of a crash.
// Kubelet would do so too, but it notices only at its next look and then waits longer each time, and until then every
// attached pod's timed frames are lost.
//
// In: a command line, and ktsnd's run directory where it is to be asked whether it lives. Out: that program, for as long as this one
// lives; signals are passed on, and its exit status is ours when it ended by itself with 0 or 2 (done, wrong configuration) or was asked
// to. A program that dies again and again is
// kubelet's to delay: after some deaths in a short time this one ends as well. A program that answers no more is killed, and so
// started again; a thread of it that hangs is its own to notice. It must never outlive what it started.
package respawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const (
	// deathsMax deaths within window are left to kubelet's back-off.
	deathsMax = 5
	window    = 10 * time.Second
	// pause lets the kernel take back what the dead program held.
	pause = 20 * time.Millisecond
	// wrongConfiguration is ktsnd's exit status for what no restart mends.
	wrongConfiguration = 2
)

const help = `ktsn-respawn: starts a program again within milliseconds of its death

Usage: ktsn-respawn [--watch RUN_DIR] PROGRAM [ARGUMENT]...

Example:
  ktsn-respawn --watch /run/ktsn ktsnd --config /etc/ktsn/ktsnd.toml --take-over 600

With --watch the ktsnd of that run directory is asked every second: one that leaves 30 questions in a row
unanswered is killed, before its first answer 300. One that waits for another ktsnd to end (--take-over) is
not asked. Signals are passed on. It ends with the program's status when that ended with 0 or 2 or was asked
to end, and after five deaths within ten seconds.
`

// Name of the program.
const Name = "ktsn-respawn"

// Main is the program. It ends the process.
func Main(arguments []string) {
	if len(arguments) > 0 && (arguments[0] == "--help" || arguments[0] == "-h") {
		fmt.Print(help)
		os.Exit(0)
	}
	var asked *watch
	if len(arguments) > 1 && arguments[0] == "--watch" {
		asked, arguments = watchDaemon(arguments[1]), arguments[2:]
	}
	if len(arguments) == 0 || arguments[0] == "--watch" {
		fmt.Fprint(os.Stderr, help)
		os.Exit(wrongConfiguration)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	os.Exit(supervise(arguments, asked, signals, os.Stderr.WriteString))
}

// supervise runs the program until it is done, asked to end, or dies too often; the exit status.
func supervise(command []string, asked *watch, signals <-chan os.Signal, say func(string) (int, error)) int {
	// The kernel's death signal is bound to the thread that started the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var deaths []time.Time
	for {
		status, isAsked, err := once(command, asked, signals, say)
		if err != nil {
			_, _ = say(fmt.Sprintf("ktsn-respawn: %v\n", err))
			return 1
		}
		if isAsked || status == 0 || status == wrongConfiguration {
			return status
		}
		now := time.Now()
		deaths = recent(append(deaths, now), now)
		if len(deaths) >= deathsMax {
			_, _ = say(fmt.Sprintf("ktsn-respawn: %s died %d times within %s, the last time with %d\n", command[0], len(deaths), window, status))
			return status
		}
		_, _ = say(fmt.Sprintf("ktsn-respawn: %s died with %d, started again\n", command[0], status))
		time.Sleep(pause)
	}
}

// recent are the deaths that still count.
func recent(deaths []time.Time, now time.Time) []time.Time {
	for len(deaths) > 0 && now.Sub(deaths[0]) > window {
		deaths = deaths[1:]
	}
	return deaths
}

// once runs the program to its end; isAsked when a signal came for it.
func once(command []string, asked *watch, signals <-chan os.Signal, say func(string) (int, error)) (status int, isAsked bool, err error) {
	program := exec.Command(command[0], command[1:]...)
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := program.Start(); err != nil {
		return 0, false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	silent := make(chan bool, 1)
	if asked != nil {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { silent <- asked.silent(ctx, program.Process.Pid) }()
	}
	for {
		select {
		case is := <-silent:
			if is {
				_, _ = say(fmt.Sprintf("ktsn-respawn: %s answers no more: killed\n", command[0]))
				_ = program.Process.Kill()
			}
		case which := <-signals:
			isAsked = true
			// It may have ended just now.
			_ = program.Process.Signal(which)
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, isAsked, err
			}
			return statusOf(program.ProcessState), isAsked, nil
		}
	}
}

// statusOf is the exit status; of a program that a signal ended, 128 and the signal's number, as a shell says it.
func statusOf(state *os.ProcessState) int {
	if waited, ok := state.Sys().(syscall.WaitStatus); ok && waited.Signaled() {
		return 128 + int(waited.Signal())
	}
	return state.ExitCode()
}
