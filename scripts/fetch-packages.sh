#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In: DIRECTORY, ARCHITECTURE, then Debian packages; a package that only names a kernel (linux-image-rt-amd64) stands for that kernel's;
# `+NAME`: also the shared libraries that NAME depends on. Out: DIRECTORY, new or replaced as a whole, with the .deb files, `list`
# (SHA-256 and name of each) and `request` (architecture and packages, a word each); or exit status 1 and the reason on standard error. apt checks the signatures, with the sources of this
# machine and a state of its own: what apt knows and what is installed on this machine stay as they are. Nothing of a package runs.
# Needs no root.
set -eu
[ $# -ge 3 ] || { echo "usage: $0 DIRECTORY ARCHITECTURE PACKAGE…" >&2; exit 2; }
directory=$1 architecture=$2
shift 2
case $directory in /*) ;; *) directory=$PWD/$directory ;; esac
case $directory in *\"*) echo "$directory: apt takes no path with a quotation mark; name another directory" >&2; exit 2 ;; esac
request="$architecture $*"
command -v apt-get >/dev/null || { echo "apt-get is not here, which fetches Debian packages" >&2; exit 1; }
mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.new-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
apt=$work/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$work/new"
: >"$apt/status"
cat >"$apt/conf" <<TEXT
#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Cache::pkgcache "pkgcache.bin";
TEXT
# The environment's file is read before this machine's own, the option's after them.
export APT_CONFIG="$apt/conf" LC_ALL=C

said() { { grep '^E:' "$apt/log" || true; } | tail -n 2 | tr '\n' ' '; }
depends() {
    apt-cache -c "$apt/conf" depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$@" 2>>"$apt/log"
}

# The index of another source may fail; what is needed is looked for below.
apt-get -c "$apt/conf" update >"$apt/log" 2>&1 || true
for package; do printf '%s\n' "${package#+}"; done >"$apt/names"
for package; do case $package in +*) printf '%s\n' "${package#+}" ;; esac done >"$apt/with-libraries"
# shellcheck disable=SC2046 # a word for each name
if ! depends $(cat "$apt/names") >"$apt/depends"; then
    echo "apt does not know all of these packages for $architecture: $(tr '\n' ' ' <"$apt/names")($(said))" >&2
    exit 1
fi
# The kernel's package in place of the one that only depends on it.
sed -nE 's/^  Depends: (linux-image-[0-9].*)/\1/p' "$apt/depends" >"$apt/kernel"
if [ -s "$apt/kernel" ]; then
    grep -v '^linux-image-' "$apt/names" >"$apt/others" || true
    cat "$apt/others" "$apt/kernel" >"$apt/names"
fi
if [ -s "$apt/with-libraries" ]; then
    # shellcheck disable=SC2046
    depends --recurse $(cat "$apt/with-libraries") | grep -E '^(lib|zlib1g)' | grep -Ev 'perl|python|^libpam|-bin$|-common$' >>"$apt/names"
fi
# shellcheck disable=SC2046
if ! (cd "$work/new" && apt-get -c "$apt/conf" download $(sort -u "$apt/names")) >"$apt/log" 2>&1; then
    echo "packages cannot be fetched: $(said)" >&2
    exit 1
fi
(cd "$work/new" && sha256sum ./*.deb | sed 's| \./| |' >list)
printf '%s\n' "$request" >"$work/new/request"
[ ! -e "$directory" ] || mv -T "$directory" "$work/old"
mv -T "$work/new" "$directory"
