#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Attacks a daemon beside an innocent stream. In: PROGRAMS, a directory with ktsn, ktsnd and libktsn.so (default: what `make build`
# left); ONLY, ROUNDS and more: `scripts/hostile.sh --help`. Out: progress, a table, out/hostile/results.json and the closing
# line 'N passed, N failed, N skipped'. The program takes the measurement lock itself, after it is built.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
if [ "$(id -u)" -ne 0 ]; then
    echo "test-hostile: it makes network namespaces and SCHED_FIFO threads: run 'make test-hostile' as root" >&2
    exit 2
fi
# The program starts in its crate's directory.
PROGRAMS=$(realpath -m "${PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}")
export PROGRAMS
# shellcheck source=scripts/leftovers.sh
. scripts/leftovers.sh
mkdir -p out/hostile
"${CARGO:-cargo}" test --locked -q --test test-hostile -- "$@" 2>&1 </dev/null | tee out/hostile/log.txt
status=${PIPESTATUS[0]}
leftovers >&2 || status=1
exit "$status"
