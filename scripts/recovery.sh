#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how soon ktsnd follows changes. In: KTSND, the program (default: what `make build` left); ROUNDS. Out: a table and
# out/bench/recovery.json. The program takes the measurement lock itself, after it is built.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
if [ "$(id -u)" -ne 0 ]; then
    echo "bench-recovery: it makes network namespaces: run 'make bench-recovery' as root" >&2
    exit 2
fi
KTSND=$(realpath -m "${KTSND:-${CARGO_TARGET_DIR:-target}/release/ktsnd}")
export KTSND
# shellcheck source=scripts/leftovers.sh
. scripts/leftovers.sh
mkdir -p out/bench
"${CARGO:-cargo}" test --locked -q --test bench-recovery -- "$@" </dev/null
status=$?
leftovers >&2 || status=1
exit "$status"
