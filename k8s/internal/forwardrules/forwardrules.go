// SPDX-License-Identifier: Apache-2.0

// Package forwardrules lets the TSN network through a node that forwards nothing by default (FORWARD policy DROP: Docker
// sets it, hardened hosts do).
//
// In: the VXLAN device's name; iptables of either generation. Out: the chain KTSN-FORWARD at the end of FORWARD, which
// accepts what goes between that device and the host ends of TSN pods, and between two of those. Where the policy is ACCEPT
// nothing is written. It must never come before another rule: what the administrator or a policy engine drops stays dropped.
package forwardrules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	chain = "KTSN-FORWARD"
	// pods matches the host ends that tsn-cni makes.
	pods = "ktsn+"
	// lockWait is how long another run of iptables is waited for, in seconds.
	lockWait = "5"
	patience = 10 * time.Second
)

// tool is one generation of iptables for one family; names says which tables the kernel holds, empty: no need to ask.
type tool struct{ program, names string }

// The older generation is asked only where its table is there: a look would make it.
var tools = []tool{
	{"iptables-nft", ""},
	{"ip6tables-nft", ""},
	{"iptables-legacy", "/proc/net/ip_tables_names"},
	{"ip6tables-legacy", "/proc/net/ip6_tables_names"},
}

// Rules keeps the chain.
type Rules struct {
	device string
	run    func(ctx context.Context, program string, arguments ...string) (string, error)
	read   func(path string) ([]byte, error)
}

// New keeps the rules of this process's network namespace for the VXLAN device `device`.
func New(device string) *Rules { return &Rules{device: device, run: run, read: os.ReadFile} }

func run(ctx context.Context, program string, arguments ...string) (string, error) {
	output, err := exec.CommandContext(ctx, program, arguments...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(arguments, " "), err, strings.TrimSpace(string(output)))
	}
	return string(output), err
}

// Ensure writes what is missing. Only what has to be written and cannot be is an error.
func (r *Rules) Ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var failed []error
	for _, t := range tools {
		if t.names != "" {
			if names, err := r.read(t.names); err != nil || !strings.Contains(string(names), "filter") {
				continue
			}
		}
		if err := r.ensure(ctx, t.program); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (r *Rules) ensure(ctx context.Context, program string) error {
	has, err := r.run(ctx, program, "-w", lockWait, "-S", "FORWARD")
	if err != nil || !contains(has, "-P FORWARD DROP") {
		// A generation that this kernel does not have, or that is not installed, drops nothing.
		return nil
	}
	// This fails where the chain exists; the next call shows whether it does.
	_, _ = r.run(ctx, program, "-w", lockWait, "-N", chain)
	own, err := r.run(ctx, program, "-w", lockWait, "-S", chain)
	if err != nil {
		return err
	}
	for _, way := range [][2]string{{r.device, pods}, {pods, r.device}, {pods, pods}} {
		rule := []string{chain, "-i", way[0], "-o", way[1], "-j", "ACCEPT"}
		if !contains(own, "-A "+strings.Join(rule, " ")) {
			if _, err := r.run(ctx, program, append([]string{"-w", lockWait, "-A"}, rule...)...); err != nil {
				return err
			}
		}
	}
	if contains(has, "-A FORWARD -j "+chain) {
		return nil
	}
	_, err = r.run(ctx, program, "-w", lockWait, "-A", "FORWARD", "-j", chain)
	return err
}

// contains says whether a line is among what iptables -S printed.
func contains(printed, line string) bool {
	for have := range strings.Lines(printed) {
		if strings.TrimSpace(have) == line {
			return true
		}
	}
	return false
}
