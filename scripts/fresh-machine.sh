#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: make targets (default: test). Out: they have run on a clean clone of HEAD in a Debian 12 tree that holds
# only make, gcc, libc6-dev, ca-certificates, git, and this machine's Rust (and Go) toolchain, read-only.
# The network is the host's; package and certificate settings are taken from this machine when it runs.
# The tree, its mounts and its processes are removed whatever happens. Needs root and mmdebstrap.
# With --keep the tree's directory stays; its mounts never do.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'fresh-machine: %s\n' "$*" >&2; exit 2; }

# Runs inside a mount and process namespace of its own: everything mounted or started here ends with it.
inside() {
    local tree=$1 name path
    shift
    mount --make-rprivate /
    mount --bind "$tree" "$tree"
    mount -t proc proc "$tree/proc"
    # Private copies: what the tests mount below must not travel back to the host.
    for name in sys dev; do mount --rbind "/$name" "$tree/$name"; done
    mount --make-rprivate "$tree/sys"
    mount --make-rprivate "$tree/dev"
    mount -t tmpfs tmpfs "$tree/run"
    mount -t tmpfs tmpfs "$tree/tmp"
    for name in rustup cargo go; do
        path=$(readlink -f "$tree/.from/$name" 2>/dev/null || true)
        [ -d "$path" ] || continue
        mkdir -p "$tree/opt/$name"
        mount --bind "$path" "$tree/opt/$name"
        mount -o remount,ro,bind "$tree/opt/$name"
    done
    mkdir -p "$tree/root/.cargo"
    local settings=()
    # Certificate settings of this machine all name the one file that was copied.
    for name in SSL_CERT_FILE CARGO_HTTP_CAINFO GIT_SSL_CAINFO CURL_CA_BUNDLE; do
        settings+=("$name=/etc/ssl/certs/ca-certificates.crt")
    done
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY GOPROXY; do
        [ -z "${!name:-}" ] || settings+=("$name=${!name}")
    done
    # Not chroot: a process that enters a mount namespace leaves a chroot, and a chroot allows no user namespace.
    mkdir "$tree/.old"
    cd "$tree"
    pivot_root . .old
    hash -r
    umount --lazy /.old
    rmdir /.old
    cd /root/project
    exec env -i HOME=/root TERM=dumb LANG=C.UTF-8 CI=true RUSTUP_HOME=/opt/rustup CARGO_HOME=/root/.cargo \
        RUSTUP_AUTO_INSTALL=0 PATH=/opt/cargo:/opt/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "${settings[@]}" make "$@"
}

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi

keep=
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(test)
[ "$(id -u)" -eq 0 ] || fail "root is needed: it mounts and changes the root directory"
for tool in mmdebstrap unshare git cargo; do
    command -v "$tool" >/dev/null || fail "$tool is missing (apt-get install mmdebstrap util-linux git; Rust by rustup)"
done
cargo_bin=$(dirname "$(command -v cargo)") # cargo, rustc and their like: shims of rustup
rustup=${RUSTUP_HOME:-$HOME/.rustup}
[ -d "$rustup/toolchains" ] || fail "no rustup toolchains in $rustup: only those can be lent to the tree"

tree=$(mktemp -d "${TMPDIR:-/tmp}/ktsn-fresh.XXXXXX")
# shellcheck disable=SC2317 # the trap calls it
clean() {
    if [ -n "$keep" ]; then
        echo "fresh-machine: the tree stays in $tree"
    else
        # One file system: should a mount have survived, what it shows is not deleted.
        rm -rf --one-file-system "$tree"
    fi
}
trap clean EXIT
trap 'exit 130' INT TERM

echo "fresh-machine: Debian 12 in $tree"
begin=$SECONDS
options=()
# How this machine reaches its mirror (proxies, lenient dates), as apt itself understands it.
while IFS= read -r line; do options+=("--aptopt=$line"); done < <(
    apt-config dump | grep -E '^Acquire::(http|https|Check-Valid-Until|Check-Date|Retries)' | grep -v '""' || true)
sources=/etc/apt/sources.list.d/debian.sources
[ -s "$sources" ] || sources=/etc/apt/sources.list
mmdebstrap --quiet --variant=minbase --include=make,gcc,libc6-dev,ca-certificates,git "${options[@]}" \
    bookworm "$tree" "$sources" </dev/null
cp /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
cp --dereference /etc/resolv.conf "$tree/etc/resolv.conf"
grep -q localhost "$tree/etc/hosts" 2>/dev/null || echo '127.0.0.1 localhost' >>"$tree/etc/hosts"
if [ -s "$HOME/.cargo/config.toml" ]; then
    mkdir -p "$tree/root/.cargo"
    cp "$HOME/.cargo/config.toml" "$tree/root/.cargo/config.toml"
fi
git clone --quiet --no-local . "$tree/root/project"

# Names of what is mounted inside: a toolchain's directory is this machine's choice.
mkdir "$tree/.from"
ln -s "$rustup" "$tree/.from/rustup"
ln -s "$cargo_bin" "$tree/.from/cargo"
if command -v go >/dev/null; then ln -s "$(go env GOROOT)" "$tree/.from/go"; fi
echo "fresh-machine: tree ready after $((SECONDS - begin)) s; make ${targets[*]}"

begin=$SECONDS
status=0
unshare --mount --pid --fork --kill-child "$PWD/scripts/fresh-machine.sh" --inside "$tree" "${targets[@]}" \
    </dev/null || status=$?
echo "fresh-machine: make ${targets[*]}: status $status after $((SECONDS - begin)) s"
exit "$status"
