// SPDX-License-Identifier: Apache-2.0

package forwardrules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// kernel is an iptables of one table, as far as Ensure uses it.
type kernel struct {
	policy  string
	chains  map[string][]string
	changes int
	missing bool
}

func (k *kernel) run(_ context.Context, program string, arguments ...string) (string, error) {
	if k.missing || program != "iptables-nft" {
		return "", exec.ErrNotFound
	}
	words := arguments[2:]
	name := words[1]
	rules, is := k.chains[name]
	switch words[0] {
	case "-S":
		if !is {
			return "", errors.New("no chain by that name")
		}
		head := "-N " + name
		if name == "FORWARD" {
			head = "-P FORWARD " + k.policy
		}
		return strings.Join(append([]string{head}, rules...), "\n") + "\n", nil
	case "-N":
		if is {
			return "", errors.New("chain already exists")
		}
		k.chains[name] = nil
	case "-A":
		k.chains[name] = append(rules, "-A "+strings.Join(words[1:], " "))
	case "-D":
		at := slices.Index(rules, "-A "+strings.Join(words[1:], " "))
		if at < 0 {
			return "", errors.New("no such rule")
		}
		k.chains[name] = slices.Delete(rules, at, at+1)
	case "-F":
		k.chains[name] = nil
	case "-X":
		if len(rules) > 0 {
			return "", errors.New("not empty")
		}
		delete(k.chains, name)
	default:
		return "", fmt.Errorf("unexpected: %v", arguments)
	}
	k.changes++
	return "", nil
}

func ensure(t *testing.T, k *kernel) {
	t.Helper()
	none := func(string) ([]byte, error) { return nil, os.ErrNotExist }
	if err := (&Rules{device: "ktsn.1", run: k.run, read: none}).Ensure(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsWrittenWhereTheNodeForwards(t *testing.T) {
	k := &kernel{policy: "ACCEPT", chains: map[string][]string{"FORWARD": nil}}
	ensure(t, k)
	if k.changes != 0 {
		t.Errorf("%+v", k)
	}
	ensure(t, &kernel{missing: true})
}

func TestRulesComeLastAndOnce(t *testing.T) {
	k := &kernel{policy: "DROP", chains: map[string][]string{"FORWARD": {"-A FORWARD -s 10.99.1.7/32 -j DROP"}}}
	ensure(t, k)
	want := []string{"-A FORWARD -s 10.99.1.7/32 -j DROP", "-A FORWARD -j KTSN-FORWARD"}
	if !slices.Equal(k.chains["FORWARD"], want) || len(k.chains[chain]) != 3 {
		t.Fatalf("%+v", k.chains)
	}
	written := k.changes
	ensure(t, k)
	if k.changes != written {
		t.Errorf("written again: %+v", k.chains)
	}
	// Somebody took one rule away.
	k.chains[chain] = k.chains[chain][:2]
	ensure(t, k)
	if k.changes != written+1 || len(k.chains[chain]) != 3 {
		t.Errorf("%+v", k.chains)
	}
}

func TestOnlyARefusedChangeIsAnError(t *testing.T) {
	policy := "DROP"
	refuse := func(_ context.Context, program string, arguments ...string) (string, error) {
		if arguments[2] == "-S" && arguments[3] == "FORWARD" && policy != "" {
			return "-P FORWARD " + policy + "\n", nil
		}
		return "", fmt.Errorf("%s: permission denied", program)
	}
	legacy := func(string) ([]byte, error) { return []byte("nat\nfilter\n"), nil }
	rules := &Rules{device: "ktsn.1", run: refuse, read: legacy}
	if err := rules.Ensure(context.Background()); err == nil || strings.Count(err.Error(), "permission denied") != len(tools) {
		t.Errorf("%v", err)
	}
	// A kernel without this generation, and a node that forwards.
	for _, policy = range []string{"", "ACCEPT"} {
		if err := rules.Ensure(context.Background()); err != nil {
			t.Errorf("%q: %v", policy, err)
		}
	}
}

func TestRemovalLeavesOtherRules(t *testing.T) {
	other := "-A FORWARD -s 10.99.1.7/32 -j DROP"
	k := &kernel{policy: "DROP", chains: map[string][]string{"FORWARD": {other}}}
	rules := &Rules{device: "ktsn.1", run: k.run, read: func(string) ([]byte, error) { return nil, os.ErrNotExist }}
	if removed, err := rules.Remove(context.Background()); removed || err != nil {
		t.Fatalf("nothing was there: %v %v", removed, err)
	}
	ensure(t, k)
	if removed, err := rules.Remove(context.Background()); !removed || err != nil {
		t.Fatalf("%v %v", removed, err)
	}
	if _, is := k.chains[chain]; is || !slices.Equal(k.chains["FORWARD"], []string{other}) {
		t.Errorf("%+v", k.chains)
	}
}
