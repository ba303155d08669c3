#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the built tree, root's rights; arguments: text that a cell's name must contain. Out: progress, a table,
# out/test/clients.json, out/test/clients.txt (its last line) and the closing line 'N passed, N failed, N skipped'.
# Under the measurement lock where it is timed (the program takes it itself).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
if [ "$(id -u)" -ne 0 ]; then
    echo "test-clients: it makes network namespaces and SCHED_FIFO threads: run 'make test-clients' as root" >&2
    exit 2
fi
# shellcheck source=scripts/leftovers.sh
. scripts/leftovers.sh
mkdir -p out/test
"${CARGO:-cargo}" test --locked -q --test clients -- "$@" 2>&1 </dev/null | tee out/test/clients.out
status=${PIPESTATUS[0]}
leftovers >&2 || status=1
tail -n 1 out/test/clients.out >out/test/clients.txt
exit "$status"
