#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every target from its kept corpus, guided by coverage.
#
#   make fuzz [SECONDS=20] [TARGET=name] [CORPUS=update] [ASAN=1]
#   scripts/fuzz.sh [--list | --help | --run TARGET FILE...]
#
#   SECONDS   for each target (default 20)
#   TARGET    only the targets with this in their names (Rust: fuzz/README.md lists them; Go: package.FuzzName)
#   CORPUS    update: what was found and reaches something new goes into fuzz/corpus/TARGET, minimised; inputs that are no longer needed
#             go out of it (those with names, which tests use, stay). Go's findings alone are kept, by Go, in testdata/fuzz
#   ASAN      1: with AddressSanitizer (the Rust targets that do without the daemon)
#
#   --list    the targets' names
#   --run     runs a Rust target once on each file: how a finding is seen again
#
# Stable Rust, Go and a C++ compiler are needed. A finding's input is kept in out/fuzz/TARGET/ and named with the command that repeats it;
# it goes into fuzz/corpus/TARGET with the fix. What was found earlier lies in out/fuzz/TARGET/corpus, and the next run begins with it.
#
# Examples
#   make fuzz                             all targets, 20 seconds each
#   make fuzz SECONDS=600 TARGET=netlink  one target for ten minutes
#   make fuzz SECONDS=60 CORPUS=update    all targets, and the corpus grows
#   scripts/fuzz.sh --run state out/fuzz/state/crash-0123
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

cargo=${CARGO:-cargo}
seconds=${SECONDS_EACH:-20} # bash has a SECONDS of its own
only=${TARGET:-}
target_dir=${CARGO_TARGET_DIR:-$root/target}
out=$root/out/fuzz
known=$root/fuzz/corpus
found=0
rows=()
program=

case $seconds in '' | 0 | *[!0-9]*) echo "fuzz: SECONDS=$seconds: expected a number of seconds above 0" >&2; exit 2 ;; esac
case ${CORPUS:-} in '' | update) ;; *) echo "fuzz: CORPUS=$CORPUS: expected update, or nothing" >&2; exit 2 ;; esac

# What takes minutes the first time.
build() {
    local options=(-p ktsn-fuzz --bin ktsn-libfuzzer --locked --features libfuzzer)
    if [ -n "${ASAN:-}" ]; then
        # Stable rustc has the sanitizer behind this switch; all of the program must have it.
        local triple
        triple=$(rustc -vV | sed -n 's/^host: //p')
        target_dir=$target_dir/asan
        options+=(--no-default-features --target "$triple" --target-dir "$target_dir")
        export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
        program=$target_dir/$triple/debug/ktsn-libfuzzer
    else
        program=$target_dir/debug/ktsn-libfuzzer
    fi
    RUSTC_WORKSPACE_WRAPPER=$root/fuzz/libfuzzer/rustc.sh "$cargo" build -q "${options[@]}"
}

count() { if [ -d "$1" ]; then find "$1" -type f | wc -l; else echo 0; fi; }

# name, inputs, corpus before and after, edges, findings
row() {
    rows+=("$(printf '%-26s %12s %8s %8s %8s %s' "$@")")
    printf '{"target":"%s","inputs":%s,"corpus_before":%s,"corpus_after":%s,"coverage":%s,"findings":%s}\n' "$@" >>"$out/rows"
}

# The last number behind a word of libFuzzer's output.
last() { sed -nE "s/^(.*[ :])?$1: *([0-9]+).*/\2/p" "$2" | tail -n 1; }

rust_target() {
    local name=$1 dir=$out/$1 status=0 before artefact
    mkdir -p "$dir/corpus"
    before=$(count "$known/$name")
    printf 'fuzz: %s for %s s\n' "$name" "$seconds"
    # Artefacts of earlier runs are this run's no more.
    find "$dir" -maxdepth 1 -type f -delete
    KTSN_FUZZ_TARGET=$name "$program" -max_total_time="$seconds" -max_len=4000 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$dir/" "$dir/corpus" "$known/$name" >"$dir/log" 2>&1 || status=$?
    local artefacts=0
    for artefact in "$dir"/{crash,timeout,oom,leak}-*; do
        [ -e "$artefact" ] || continue
        artefacts=$((artefacts + 1))
        sed -n '/panicked at/,+2p' "$dir/log"
        printf 'fuzz: FOUND %s\n  again: scripts/fuzz.sh --run %s %s\n' "$artefact" "$name" "$artefact"
    done
    if [ "$status" -ne 0 ] && [ "$artefacts" -eq 0 ]; then
        tail -n 5 "$dir/log"
        printf 'fuzz: FAILED: %s ended with status %s; all it said: %s\n' "$name" "$status" "$dir/log"
        artefacts=1
    fi
    found=$((found + artefacts))
    [ "${CORPUS:-}" != update ] || merge "$name"
    local runs edges # how often it ran, and what it reached
    runs=$(last stat::number_of_executed_units "$dir/log")
    edges=$(last cov "$dir/log")
    row "$name" "${runs:-0}" "$before" "$(($(count "$known/$name")))" "${edges:-0}" "$artefacts"
}

# Keeps, beside the inputs with names, the fewest and smallest that reach all that is reached.
merge() {
    local name=$1 dir=$out/$1 file options=()
    # A run of the registrar takes milliseconds: its inputs are kept for an edge, not for each number of times that it is reached.
    [ "$name" != registrar ] || options=(-use_counters=0)
    rm -rf "$dir/merge"
    mkdir -p "$dir/merge"
    for file in "$known/$name"/*; do
        ! [[ ${file##*/} =~ ^[0-9a-f]{40}$ ]] || mv "$file" "$dir/merge/"
    done
    KTSN_FUZZ_TARGET=$name "$program" -merge=1 "${options[@]}" -max_len=4000 "$known/$name" "$dir/merge" "$dir/corpus" >"$dir/merge.log" 2>&1 || {
        # Nothing that was kept is lost.
        cp -n "$dir/merge"/* "$known/$name/" 2>/dev/null || true
        echo "fuzz: FAILED: the corpus of $name could not be minimised: $dir/merge.log"
        found=$((found + 1))
    }
}

# Lines `package FuzzName`.
go_targets() {
    (cd k8s && grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed -E 's|^\./(.*)/[^/]*:[0-9]+:func |\1 |' | sort)
}

go_target() {
    local package=$1 name=$2 log=$out/go-$2.log status=0 before
    before=$(count "k8s/$package/testdata/fuzz/$name")
    printf 'fuzz: %s.%s for %s s\n' "${package##*/}" "$name" "$seconds"
    (cd k8s && go test "./$package" -run '^$' -fuzz "^$name\$" -fuzztime "${seconds}s" -parallel 2) >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        found=$((found + 1))
        tail -n 15 "$log"
        printf 'fuzz: FOUND by %s; Go names the input and the command above (below k8s/); all it said: %s\n' "$name" "$log"
    fi
    local runs
    runs=$(sed -nE 's/.*execs: ([0-9]+).*/\1/p' "$log" | tail -n 1)
    local interesting
    interesting=$(sed -nE 's/.*\(total: ([0-9]+)\).*/\1/p' "$log" | tail -n 1)
    row "${package##*/}.$name" "${runs:-0}" "$before" "$(count "k8s/$package/testdata/fuzz/$name")" "${interesting:-0}" "$((status != 0))"
}

wanted() { [[ -z $only || $1 == *"$only"* ]]; }

case ${1:-} in
    --help | -h) sed -n '3,/^set /{s/^# \{0,1\}//p}' scripts/fuzz.sh; exit 0 ;;
    --list)
        build
        "$program" --targets
        go_targets
        exit 0
        ;;
    --run)
        [ $# -ge 3 ] || { echo "usage: scripts/fuzz.sh --run TARGET FILE..." >&2; exit 2; }
        build
        KTSN_FUZZ_TARGET=$2 exec "$program" "${@:3}"
        ;;
    '') ;;
    *) echo "fuzz: $1: unknown; scripts/fuzz.sh --help" >&2; exit 2 ;;
esac

mkdir -p "$out"
rm -f "$out/rows"
touch "$out/rows"
echo "fuzz: building (minutes the first time)"
build
for name in $("$program" --targets); do
    if wanted "$name"; then rust_target "$name"; fi
done
# shellcheck source=scripts/go-env.sh
. scripts/go-env.sh
while read -r package name; do
    if [ -z "${ASAN:-}" ] && wanted "${package##*/}.$name"; then go_target "$package" "$name"; fi
done < <(go_targets)
[ ${#rows[@]} -gt 0 ] || { echo "fuzz: no target is called like $only; scripts/fuzz.sh --list" >&2; exit 2; }

echo
printf '%-26s %12s %8s %8s %8s %s\n' target inputs before after coverage findings
printf '%s\n' "${rows[@]}"
echo "(before, after: the kept corpus; coverage: edges of KTSN's own crates, of Go the inputs that reach something new)"
printf '{"seconds":%s,"targets":[%s]}\n' "$seconds" "$(paste -sd, "$out/rows")" >"$out/results.json"
rm -f "$out/rows"
echo "fuzz: ${#rows[@]} targets, $found findings; $out/results.json"
[ "$found" -eq 0 ]
