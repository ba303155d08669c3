#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The deployment files of k8s/deploy. In: `check` or `write`. Out: faults and exit status 1, or the plain manifests written
# again from the chart. The checker is a Go module of its own (Helm's engine, the Kubernetes types); it needs no cluster.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/go-env.sh
. scripts/go-env.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
module=k8s/deploy/check
program=$target/go-tools/ktsn-manifests

mkdir -p "$target/go-tools"
(cd "$module" && go build -o "$program" .)
case ${1:-} in
    check)
        [ -z "$(gofmt -l "$module")" ] || { echo "gofmt would change: $(gofmt -l "$module")"; exit 1; }
        (cd "$module" && go vet ./...)
        # It must find the faults of its bad examples before it may judge.
        (cd "$module" && go test -count=1 ./...) >"$program.log" || { cat "$program.log"; exit 1; }
        "$program" -deploy k8s/deploy
        ;;
    write) "$program" -deploy k8s/deploy -write ;;
    *)
        echo "usage: scripts/manifests.sh check | write" >&2
        exit 2
        ;;
esac
