// SPDX-License-Identifier: Apache-2.0

// Package nodetest is what the tests of the two clients of ktsnd's control API have in common. Nothing that is shipped uses it.
package nodetest

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"ktsn.io/ktsn/k8s/internal/nodeapi"
	"ktsn.io/ktsn/k8s/internal/nodecall"
)

// Serve answers at the run directory's socket, with gRPC's own library, until the test ends.
func Serve(t *testing.T, directory string, daemon nodeapi.NodeServer) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(directory, nodecall.SocketName))
	if err != nil {
		t.Error(err)
		return nil
	}
	server := grpc.NewServer()
	nodeapi.RegisterNodeServer(server, daemon)
	go server.Serve(listener) // ends with the test
	t.Cleanup(server.Stop)
	return server
}

// Within is a context of so long.
func Within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// WantError is an error of that code that says all these words.
func WantError(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if err == nil || nodecall.CodeOf(err) != code {
		t.Fatalf("code %v, expected %v: %v", nodecall.CodeOf(err), code, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}
