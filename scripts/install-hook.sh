#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the libktsn.so that cargo built, and where it shall lie. Out: a copy beside the binaries, where `ktsn run`
# looks for it. A library with a NEEDED entry is refused: it would pull a second libc into musl programs.
# With --self-test: proves that such a library is refused.
set -euo pipefail

needed() { LC_ALL=C readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | tr '\n' ' '; }

self_test() {
    local bad
    directory=$(mktemp -d) # not local: the trap runs after the function
    trap 'rm -rf "$directory"' EXIT
    echo 'int puts(const char *); int ktsn_test(void) { return puts(""); }' >"$directory/bad.c"
    gcc -shared -fPIC -o "$directory/bad.so" "$directory/bad.c"
    if bad=$("$0" "$directory/bad.so" "$directory/out.so" 2>&1) || [ -e "$directory/out.so" ]; then
        echo "install-hook: self-test: a library that needs libc was accepted: $bad" >&2
        exit 1
    fi
}

if [ "${1:-}" = --self-test ]; then self_test; exit 0; fi
library=$1
place=$2
if ! command -v readelf >/dev/null; then
    echo "install-hook: readelf is missing: run 'make setup' first" >&2
    exit 2
fi
libraries=$(needed "$library")
if [ -n "$libraries" ]; then
    echo "install-hook: $library needs $libraries: it must link against no library" >&2
    exit 1
fi
mkdir -p "$(dirname "$place")"
# A new file, renamed into place: a program that runs with the old library mapped keeps the old one.
cp "$library" "$place.new"
mv "$place.new" "$place"
