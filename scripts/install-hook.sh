#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the libktsn.so that cargo built, and where it shall lie. Out: a copy beside the binaries, where `ktsn run`
# looks for it. Refused is a library that names another one (it would pull a second libc into musl programs), or
# that asks the program for more than the two symbols that every C library has.
# With --self-test: proves that both kinds are refused and a proper one is not.
set -euo pipefail

export LC_ALL=C
ALLOWED=' dlsym __errno_location '

needed() { readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'; }
undefined() { readelf --dyn-syms -W "$1" | awk '$7 == "UND" && $8 != "" { sub(/@.*/, "", $8); print $8 }'; }

install_hook() {
    local library=$1 place=$2 name found new
    found=$(needed "$library")
    if [ -n "$found" ]; then
        echo "install-hook: $library must link against no library, but needs: ${found//$'\n'/ }" >&2
        return 1
    fi
    found=$(undefined "$library")
    for name in $found; do
        if [[ $ALLOWED != *" $name "* ]]; then
            echo "install-hook: $library asks the program for $name (allowed:$ALLOWED)" >&2
            return 1
        fi
    done
    mkdir -p "$(dirname "$place")"
    # A new file, renamed into place: a program that runs with the old library mapped keeps the old one. Two builds may do so at once.
    new=$(mktemp "$place.XXXXXX")
    if ! { cp "$library" "$new" && chmod 755 "$new" && mv "$new" "$place"; }; then
        rm -f "$new"
        return 1
    fi
}

self_test() {
    local bare=(-nostdlib -nodefaultlibs -nostartfiles)
    directory=$(mktemp -d) # not local: the trap runs after the function
    trap 'rm -rf "$directory"' EXIT
    cd "$directory"
    echo 'int puts(const char *); int ktsn_test(void) { return puts(""); }' >puts.c
    echo 'void *dlsym(void *, const char *); void *ktsn_test(void) { return dlsym(0, "x"); }' >good.c
    gcc -shared -fPIC -o needs.so puts.c
    gcc -shared -fPIC "${bare[@]}" -o asks.so puts.c
    gcc -shared -fPIC "${bare[@]}" -o good.so good.c
    for name in needs asks; do
        if (install_hook "$name.so" out/libktsn.so) 2>/dev/null || [ -e out/libktsn.so ]; then
            echo "install-hook: self-test: $name.so was accepted" >&2
            return 1
        fi
    done
    install_hook good.so out/libktsn.so
    cmp -s good.so out/libktsn.so
}

if ! command -v readelf >/dev/null; then
    echo "install-hook: readelf is missing: run 'make setup' first" >&2
    exit 2
fi
if [ "${1:-}" = --self-test ]; then self_test; else install_hook "$@"; fi
