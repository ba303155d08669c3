// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	environment := map[string]string{"POD_NAMESPACE": "tsn", "POD_NAME": "c-1", "KTSN_TSN_CIDR": "10.99.0.0/16"}
	c, err := parse([]string{"--rollout-margin", "5s"}, func(name string) string { return environment[name] }, io.Discard)
	if err != nil || c.namespace != "tsn" || c.identity != "c-1" || len(c.work.Prefixes.CIDRs) != 1 || c.work.Rollouts.Margin != 5*time.Second ||
		!c.elect || c.work.Prefixes.IPv4 != 24 {
		t.Errorf("%+v, %v", c, err)
	}
	none := func(string) string { return "" }
	for argument, text := range map[string]string{
		"--tsn-cidr=10.99.0.1/16": "--tsn-cidr: found", "--rollout-margin=1s": "--rollout-margin: found", "--check-timeout=1ms": "--check-timeout: found",
		"--hand-over=2s":   "--hand-over: found",
		"--log-level=loud": "--log-level: found", "word": "unexpected argument", "--unknown": "not defined",
	} {
		if _, err := parse([]string{argument}, none, io.Discard); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", argument, err)
		}
	}
	if _, err := parse([]string{"--tsn-cidr=10.99.0.0/16", "--prefix-length-ipv4=31"}, none, io.Discard); err == nil {
		t.Error("a prefix without addresses for pods")
	}
	var out bytes.Buffer
	if _, err := parse([]string{"--help"}, none, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "Examples:") {
		t.Errorf("%v: %s", err, out.String())
	}
}
