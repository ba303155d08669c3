#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Go side (k8s/). In: what to do. Out:
#   build FOLDER   its programs, static, in FOLDER
#   generate       the types of proto/ktsn/v1/node.proto, written again into k8s/internal/nodeapi
#   lint           exit status 0 if the types are current, gofmt has nothing to do, and vet and staticcheck find nothing
#   bench-cni FOLDER FILE   what ADD costs, with the programs in FOLDER, as a document in FILE
#   bench-scale FOLDER …    a large cluster without kubelets, with ktsn-controller in FOLDER (tests/k8s/scale.py)
#   test           builds the programs that it starts, then `go test -json` with the race detector, as scripts/tally.py reads it
# The linters and generators are programs of k8s/tools/go.mod, a module of its own: nothing that is shipped depends on it.
set -euo pipefail
cd "$(dirname "$0")/../k8s"
# shellcheck source=scripts/go-env.sh
. ../scripts/go-env.sh
target=${CARGO_TARGET_DIR:-$PWD/../target}
case $target in /*) ;; *) target=$PWD/../$target ;; esac
export CARGO_TARGET_DIR=$target # the tests look there for what cargo built, from folders of their own
tools=$target/go-tools

build_tools() {
    mkdir -p "$tools"
    (cd tools && go build -o "$tools/" tool ./protogen)
}

generate() { (cd tools && "$tools/protogen" -plugins "$tools" "$@"); }

lint() {
    local status=0 unformatted module
    build_tools
    generate -check || status=1
    unformatted=$(gofmt -l .)
    [ -z "$unformatted" ] || { printf 'gofmt would change: %s\n' "$unformatted"; status=1; }
    for module in . tools; do
        (cd "$module" && go vet ./... && "$tools/staticcheck" ./...) || status=1
        (cd "$module" && go mod tidy -diff) || { echo "k8s/$module: go mod tidy would change go.mod or go.sum"; status=1; }
    done
    return "$status"
}

absolute() { case $1 in /*) echo "$1" ;; *) echo "$OLDPWD/$1" ;; esac; }

case ${1:-} in
    build)
        out=$(absolute "$2")
        mkdir -p "$out"
        shopt -s nullglob
        # On the node no function is copied into its callers (a tenth less), nor begins at a multiple of 32 (2 % less; Go 1.26 and newer),
        # nor in ktsn-chart; the controller of a large cluster has more to do.
        alignment=
        case $(go tool link -h 2>&1 || true) in *-funcalign*) alignment='-funcalign=8' ;; esac
        for program in cmd/*/; do
            compiler=-l linker="-s -w $alignment"
            [ "$program" != cmd/ktsn-controller/ ] || compiler='' linker='-s -w'
            go build -gcflags "all=$compiler" -ldflags "$linker" -o "$out/" "./$program"
        done
        ;;
    generate) build_tools && generate ;;
    lint) lint ;;
    bench-cni)
        bin=$(absolute "$2") json=$(absolute "$3")
        go build -o "$target/bench-cni" ./test/bench-cni
        mkdir -p ../out
        exec flock ../out/.measure.lock "$target/bench-cni" -bin "$bin" -json "$json"
        ;;
    bench-scale)
        bin=$(absolute "$2")
        shift 2
        go build -o "$target/bench-scale" ./test/bench-scale
        mkdir -p ../out
        exec flock ../out/.measure.lock ../tests/k8s/scale.py --programs "$bin" --bench "$target/bench-scale" "$@"
        ;;
    test)
        shift
        (cd .. && "${CARGO:-cargo}" test --no-run --locked --test talk_listen --test command_line && "${CARGO:-cargo}" build --locked --profile hook -p libktsn)
        CGO_ENABLED=1 go test -json -race -count=1 -timeout 20m "$@" ./...
        ;;
    *)
        echo "usage: scripts/go.sh build FOLDER | generate | lint | bench-cni FOLDER FILE | bench-scale FOLDER | test" >&2
        exit 2
        ;;
esac
