#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the tree. Out: exit status 0 if every rule that a program can check holds. All steps run, then the failed
# ones are named. It changes no file.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
cargo=${CARGO:-cargo}

if ! "$cargo" fmt --version >/dev/null 2>&1 || ! "$cargo" clippy --version >/dev/null 2>&1; then
    cat >&2 <<'TEXT'
lint: this Rust installation has no rustfmt or no clippy. `make lint` needs both (build, test and demo do not):
  with rustup:            rustup component add rustfmt clippy
  with a distribution:    its packages rustfmt and rust-clippy, of the same version as its rustc
TEXT
    exit 2
fi

failed=()
step() {
    local name=$1 begin=$SECONDS
    shift
    echo "== lint: $name"
    "$@" </dev/null || failed+=("$name")
    echo "   $name: $((SECONDS - begin)) s"
}

scripts_of_shell() { git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run; }
shell() { scripts_of_shell | xargs -d '\n' -r shellcheck --severity=style; }

in_bad() { (cd "$bad" && CARGO_TARGET_DIR="$bad/target" "$cargo" "$@") >/dev/null 2>&1; }

# A linter that finds nothing in a bad script, or a formatter that accepts a bad file, would pass everything.
prove_tools() {
    local bad
    bad=$(mktemp -d) || return 1
    # shellcheck disable=SC2016 # the bad script's own variable
    printf '#!/bin/bash\nrm -rf $1\n' >"$bad/bad.sh"
    printf 'fn  main( ){}\n' >"$bad/bad.rs"
    local verdict=0
    if shellcheck "$bad/bad.sh" >/dev/null 2>&1; then echo "shellcheck accepted a bad script"; verdict=1; fi
    if rustfmt --check "$bad/bad.rs" >/dev/null 2>&1; then echo "rustfmt accepted a bad file"; verdict=1; fi
    # A crate with a function too long by one line, and one with a broken link in its documentation.
    mkdir "$bad/src"
    printf '[package]\nname = "bad"\nedition = "2024"\n[workspace]\n' >"$bad/Cargo.toml"
    cp clippy.toml "$bad/"
    { echo 'pub fn f(mut x: u64) -> u64 {'; yes '    x += 1;' | head -n 70; printf '    x\n}\n'; } >"$bad/src/lib.rs"
    if in_bad clippy -q -- -D clippy::too_many_lines; then echo "clippy accepted a long function"; verdict=1; fi
    # shellcheck disable=SC2016 # the backticks are Markdown
    printf '//! See [`nothing`].\n' >"$bad/src/lib.rs"
    if RUSTDOCFLAGS="-D warnings" in_bad doc -q; then echo "rustdoc accepted a broken link"; verdict=1; fi
    printf '//! Good.\n' >"$bad/src/lib.rs"
    if ! RUSTDOCFLAGS="-D warnings" in_bad doc -q; then echo "cargo doc fails on a good crate"; verdict=1; fi
    rm -rf "$bad"
    return "$verdict"
}

# -D turns warnings into errors; too_many_lines counts against clippy.toml's threshold.
clippy() { "$cargo" clippy --locked -q "$@" -- -D warnings -D clippy::too_many_lines; }
# libktsn is no_std without its tests and std with them: each form is checked, apart from the other crates.
clippy_hook() { clippy -p libktsn --lib --profile hook && clippy -p libktsn --lib --profile test; }
clippy_loom() {
    RUSTFLAGS="--cfg loom" clippy -p ktsn-ring --all-targets --target-dir "${CARGO_TARGET_DIR:-target}/loom"
}
rustdoc() {
    RUSTDOCFLAGS="-D warnings" "$cargo" doc --locked -q --no-deps --workspace --exclude libktsn
}

step tools prove_tools
step tally scripts/tally.py --self-test
step soak-ledger tests/soak/ledger_test.py
step install-hook scripts/install-hook.sh --self-test
step checks scripts/check.py
step shellcheck shell
step rustfmt "$cargo" fmt --all --check
step clippy clippy --workspace --exclude libktsn --all-targets
# Programs of make targets that `cargo test` leaves out.
step clippy-targets clippy --test clients --test injections --test guests --test test-hostile --test bench-recovery --test testpmd \
    --test dpdk_daemon --test ovs_daemon --test datapaths_dpdk --test ovs_guests
step clippy-dpdk clippy --workspace --exclude libktsn --all-targets --features ktsnd/dpdk,ktsn-bench/dpdk
step clippy-libktsn clippy_hook
step clippy-loom clippy_loom
step rustdoc rustdoc
step manifests scripts/manifests.sh check
step go scripts/go.sh lint

if [ ${#failed[@]} -gt 0 ]; then
    echo "lint: failed: ${failed[*]}"
    exit 1
fi
echo "lint: everything holds"
