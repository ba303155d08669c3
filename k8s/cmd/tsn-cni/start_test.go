// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Libraries that describe themselves at the start of every program cost each pod more than all that ADD does.
func TestStartsWithoutHeavyLibraries(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{"google.golang.org/protobuf/", "google.golang.org/grpc/internal/transport", "k8s.io/", "github.com/prometheus/", "go.opentelemetry.io/", "net/http/"}
	for _, found := range strings.Fields(string(out)) {
		for _, prefix := range heavy {
			if strings.HasPrefix(found+"/", prefix) {
				t.Errorf("%s is linked", found)
			}
		}
	}
}
