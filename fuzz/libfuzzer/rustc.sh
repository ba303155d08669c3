#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rustc for KTSN's own crates (cargo's RUSTC_WORKSPACE_WRAPPER): with the counters that libFuzzer reads, and optimised a little. Stable
# rustc takes all of it. What runs at build time (build scripts, macros) stays free of counters.
set -eu
case " $* " in
    *" build_script_"* | *" proc-macro "*) exec "$@" ;;
esac
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Copt-level=1
