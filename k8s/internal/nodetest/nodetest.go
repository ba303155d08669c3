// SPDX-License-Identifier: Apache-2.0

// Package nodetest helps tests of programs that call ktsnd. No shipped program uses it.
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
)

// Serve runs a gRPC server at the run directory's socket until the test ends.
func Serve(t *testing.T, directory string, daemon nodeapi.NodeServer) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(directory, nodeapi.SocketName))
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

// Within returns a context with that deadline.
func Within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// WantError fails the test unless err has that code and its text has all these words.
func WantError(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if err == nil || nodeapi.CodeOf(err) != code {
		t.Fatalf("code %v, expected %v: %v", nodeapi.CodeOf(err), code, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}
