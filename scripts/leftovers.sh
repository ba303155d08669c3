# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by what runs tests, in the tree's root. In: nothing. Out: TMPDIR, a directory of these tests alone, which is gone
# when the script ends, however it ends; and `leftovers`. Never: what belongs to tests that still run elsewhere.

# What tests that have ended left, a line each: namespaces whose process is gone (their names hold its number), processes
# that were given this TMPDIR (this shell's own environment, as /proc shows it, is older), what lies in it.
left_behind() {
    local path
    for path in /run/netns/{ktsnf,ktsnd,ktsnlab-,kport-,kton,ktag}[0-9]*; do
        [[ ${path##*/} =~ ^[a-z-]+([0-9]+)- ]] && [ ! -e "/proc/${BASH_REMATCH[1]}" ] && echo "namespace ${path##*/}"
    done
    for path in $(env -u TMPDIR grep -slzxF "TMPDIR=$TMPDIR" /proc/[0-9]*/environ); do
        path=${path%/environ}
        echo "process ${path##*/} $(tr '\0\n' '  ' <"$path/cmdline" 2>/dev/null | cut -c1-120)"
    done
    env -u TMPDIR find "$TMPDIR" -mindepth 1 -maxdepth 2 ! -name $'*\n*' -printf 'file %p\n' 2>/dev/null
}

# Removes it and names it. What is just ending has five seconds. Exit status 1 if there was anything.
leftovers() {
    local left what name
    for _ in {1..50}; do
        left=$(left_behind)
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    while read -r what name; do
        case $what in
            namespace)
                ip netns pids "$name" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
                ip netns del "$name" 2>/dev/null
                ;;
            process) kill -KILL "${name%% *}" 2>/dev/null ;;
            file)
                case $name in "$TMPDIR"/*) ;; *) continue ;; esac
                umount -q --lazy "$name" 2>/dev/null
                # Behind a mount lies what is not ours.
                mountpoint -q "$name" || rm -rf --one-file-system --preserve-root=all "$name"
                ;;
        esac
    done <<<"$left"
    printf '%s\n' "$left" | sed 's/^/leftovers: removed /'
    return 1
}

TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/ktsn.XXXXXX") || exit 2
export TMPDIR
chmod 755 "$TMPDIR" # programs without rights use it, too
# Ctrl-C ends the tests before they can tidy up.
trap 'leftovers >&2; rm -rf --one-file-system "$TMPDIR"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
leftovers >&2 || true # of runs before this one
