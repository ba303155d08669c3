# SPDX-License-Identifier: Apache-2.0
# Sourced: how Go compiles everything here. Without gRPC's tracing, which would link and start an HTTP server and its templates, and without
# net/http's copy of HTTP/2, which client-go and gRPC have from golang.org/x/net. Each package is compiled once for linters and programs.
# shellcheck shell=bash
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly -tags=grpcnotrace,nethttpomithttp2" GOTOOLCHAIN=local
