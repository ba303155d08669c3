// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Every pod pays for the start of tsn-cni, so it links no library that it does not need.
func TestStartsWithoutHeavyLibraries(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{"google.golang.org/grpc/xds/", "google.golang.org/grpc/reflection/", "golang.org/x/net/trace/", "html/template/", "k8s.io/", "github.com/prometheus/", "go.opentelemetry.io/"}
	for _, found := range strings.Fields(string(out)) {
		for _, prefix := range heavy {
			if strings.HasPrefix(found+"/", prefix) {
				t.Errorf("%s is linked", found)
			}
		}
	}
}
