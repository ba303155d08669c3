#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: scripts/packages.txt. Out: those Debian packages installed, and the packages of guests fetched. It installs only what is missing, asks
# for no input, and never touches the Rust or Go toolchains: those are the developer's own.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# Facts that setup cannot mend: it names each with its remedy.
check_toolchain() {
    local wanted found
    wanted=$(sed -nE 's/^rust-version *= *"([0-9.]+)"/\1/p' Cargo.toml)
    command -v "${CARGO:-cargo}" >/dev/null || fail "cargo is missing: install Rust $wanted or newer (https://rustup.rs)"
    found=$("${CARGO:-cargo}" --version | sed -nE 's/^cargo ([0-9]+\.[0-9]+).*/\1/p')
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        fail "cargo $found is too old: Rust $wanted or newer is needed"
    fi
    # The Kubernetes programs; the linters of k8s/tools ask for a newer one and say so themselves.
    wanted=$(sed -nE 's/^go ([0-9]+\.[0-9]+).*/\1/p' k8s/go.mod)
    command -v go >/dev/null || fail "go is missing: install Go $wanted or newer (https://go.dev/dl)"
    found=$(GOTOOLCHAIN=local go env GOVERSION | sed -nE 's/^go([0-9]+\.[0-9]+).*/\1/p')
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        fail "go $found is too old: Go $wanted or newer is needed"
    fi
    command -v gcc >/dev/null || fail "gcc is missing: apt-get install gcc libc6-dev"
}

check_toolchain
command -v dpkg-query >/dev/null ||
    fail "this is not Debian (no dpkg): install what scripts/packages.txt lists by your own package manager"

missing=()
while read -r package _; do
    case $package in '' | '#'*) continue ;; esac
    # shellcheck disable=SC2016 # ${…} is dpkg-query's own format
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done <scripts/packages.txt

# The packages of `ktsn vm`'s guests, which are not installed (lab/src/vm/kind.rs has the same lists): into the cache where `ktsn vm` looks
# for them. Only its tests need them, so a machine that cannot fetch them only hears of it.
fetch_guest_packages() {
    fetch_packages packages 85 linux-image-rt-amd64
    fetch_packages packages-uml 56 user-mode-linux
}

# In: a directory of the cache, how much is fetched (MB), the kernel's package.
fetch_packages() {
    local user_s=${HOME:+$HOME/.cache}
    local cache=${KTSN_VM_CACHE:-${XDG_CACHE_HOME:-${user_s:-/var/cache}}/ktsn/vm}
    local packages=("$3" busybox-static dash +iproute2 +chrony +rt-tests +ethtool +libgcc-s1)
    [ "$(cat "$cache/$1/request" 2>/dev/null)" != "amd64 ${packages[*]}" ] || return 0
    # Without a network each target would wait for it.
    if [ "$(uname -m)" != x86_64 ] || [ -n "$(find "$cache/not-fetched" -mmin -1440 2>/dev/null)" ]; then return 0; fi
    echo "setup: fetching the packages of the guests of \`ktsn vm\` into $cache/$1 ($2 MB)"
    mkdir -p "$cache"
    # The lock of `ktsn vm`.
    if ! flock "$cache/lock" scripts/fetch-packages.sh "$cache/$1" amd64 "${packages[@]}"; then
        touch "$cache/not-fetched"
        echo "setup: not fetched, not tried again for a day; the tests of \`ktsn vm\` fetch them, or are skipped"
    fi
}

if [ ${#missing[@]} -eq 0 ]; then
    fetch_guest_packages
    echo "setup: nothing to do, all packages are installed"
    exit 0
fi
[ "$(id -u)" -eq 0 ] || fail "missing packages: ${missing[*]}. Installing them needs root: run 'make setup' as root once"

log=out/setup.log
mkdir -p out
echo "setup: installing ${missing[*]} (log: $log)"
export DEBIAN_FRONTEND=noninteractive
# No service of a package is started: what the tests need they run themselves, in places of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
enabled() { { find /etc/systemd/system -path '*.wants/*.service' 2>/dev/null || true; } | sort; }
before=$(enabled)
if ! { apt-get update && apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"; } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail "apt-get failed, see $log"
fi
# Nor when the machine starts again (Open vSwitch, DPDK).
comm -13 <(echo "$before") <(enabled) | xargs -r rm -v >>"$log"
echo "setup: installed ${#missing[@]} package(s)"
fetch_guest_packages
