#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzzes one target with libFuzzer and AddressSanitizer: run.sh TARGET [libFuzzer option]...
# New inputs go to out/fuzz/TARGET, failing ones beside them; the committed corpus is only read.
set -eu
target=${1:?usage: run.sh TARGET [libFuzzer option]...}
shift
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../out/fuzz/$target
mkdir -p "$out/corpus"
triple=$(rustc +nightly -vV | sed -n 's/^host: //p')
# Coverage that libFuzzer reads; --target keeps build scripts free of it.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing \
-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
export RUSTFLAGS
features=
[ "$target" != api ] || features=--features=api
# shellcheck disable=SC2086 # one word or none
cargo +nightly build --manifest-path "$here/Cargo.toml" --release --target "$triple" $features
binary=${CARGO_TARGET_DIR:-$here/target}/$triple/release/ktsn-libfuzzer
KTSN_FUZZ_TARGET=$target exec "$binary" -artifact_prefix="$out/" "$@" "$out/corpus" "$here/../corpus/$target"
