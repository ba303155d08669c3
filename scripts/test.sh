#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the tree, and the packages of `make setup`; `dpdk`, `k8s`, `loom` or `vm`: these suites instead of the workspace's. Out: logs and
# results.json in out/test (out/test-dpdk, …), and one closing line 'N passed, N failed, N skipped'. Every suite runs even if one before
# it failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
if [ "$(id -u)" -ne 0 ]; then
    echo "test: the tests make network namespaces and SCHED_FIFO threads: run 'make test' as root" >&2
    exit 2
fi
# shellcheck source=scripts/leftovers.sh
. scripts/leftovers.sh
out=out/test${1:+-$1}
rm -rf "$out"
mkdir -p "$out"

# Where the failed assertion is named right above the list of failures; TEST_BACKTRACE=1 shows how it was reached.
# What one test's ktsnd learns of this machine is no other one's to begin with.
export KTSN_CACHE_DIR=/proc/none
export RUST_BACKTRACE=${TEST_BACKTRACE:-0}

# suite NAME COMMAND…: runs it, shows its progress and its failures, keeps its whole log and its exit status for the tally. One
# that leaves something behind has failed (status 99). A few tests that failed run five times more, alone, so that their rate is known
# (tally.py): one that passes each time is named as unsteady, and has failed all the same. All runs are kept.
suite() {
    local name=$1
    shift
    once "$name" "$@"
    [ "$name" != k8s ] || return 0
    mapfile -t again < <(python3 scripts/tally.py --again "$out/$name")
    [ ${#again[@]} -ne 0 ] || return 0
    for turn in 1 2 3 4 5; do RUST_TEST_THREADS=1 once "$name-alone$turn" "$@" --exact "${again[@]}"; done
}

once() {
    local name=$1 status left
    shift
    echo "== $name: $*"
    "$@" 2>&1 </dev/null | scripts/tally.py --read "$out/$name"
    status=${PIPESTATUS[0]}
    if ! left=$(leftovers); then
        echo "$left" | tee -a "$out/$name.log"
        status=99
    fi
    echo "$status" >"$out/$name.status"
}

# The optional port, which nothing else of the build needs; and backends of vhost-user, which keep a CPU busy.
dpdk() {
    local test=("$cargo" test --locked --no-fail-fast)
    suite dpdk "${test[@]}" --features ktsnd/dpdk --test dpdk -- --show-output
    suite dpdk-libraries "${test[@]}" --features ktsnd/dpdk --lib dpdk -- --show-output
    suite vhost-user "${test[@]}" --test testpmd -- --show-output --test-threads=1
    suite dpdk-end-to-end "${test[@]}" --test dpdk_daemon -- --show-output
    suite ovs-end-to-end "${test[@]}" --test ovs_daemon -- --show-output
    suite datapaths-dpdk "${test[@]}" --test datapaths_dpdk -- --show-output --test-threads=1
    suite ovs-guests "${test[@]}" --test ovs_guests -- --show-output --test-threads=1
}

workspace() {
    # --show-output: a passing test's SKIP lines must be seen. Most tests wait for something: more run side by side than there are CPUs.
    export RUST_TEST_THREADS=$((2 * $(nproc)))
    suite workspace "$cargo" test --locked --no-fail-fast -- --show-output
    # Its library alone: without `cfg(test)` it links only in the hook profile.
    suite libktsn "$cargo" test --locked --no-fail-fast -p libktsn --lib -- --show-output
}

loom_models() {
    # The models explore every interleaving of the ring's steps: too slow without optimisation, and built with a
    # cfg of their own, so in a target directory of their own.
    mapfile -t models < <(find ring/tests -name 'loom*.rs' -printf '%f\n' 2>/dev/null | sed 's/\.rs$//' | sort)
    loom=()
    for model in "${models[@]}"; do loom+=(--test "$model"); done
    if [ ${#loom[@]} -eq 0 ]; then
        echo "no loom models in ring/tests" | tee "$out/loom.log"
        echo 1 >"$out/loom.status"
    else
        suite loom env RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}" "$cargo" test --locked --no-fail-fast -p ktsn-ring --release \
            --target-dir "$target/loom" "${loom[@]}" -- --show-output
    fi
}

# Without -p: with other members of the workspace cargo takes other features, and builds the dependencies again.
case "${1:-}" in
"") workspace ;;
dpdk) dpdk ;;
k8s) suite k8s scripts/go.sh test ;;
loom) loom_models ;;
vm) suite vm "$cargo" test --locked --no-fail-fast --test guests -- --show-output --test-threads=1 ;;
*)
    echo "test: unknown suite '$1', expected dpdk, k8s, loom or vm" >&2
    exit 2
    ;;
esac
echo "all that the tests printed: $out/*.log"
python3 scripts/tally.py "$out" tests/skips.toml
