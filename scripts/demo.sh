#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In: the path of the ktsn binary. Out: out/demo/{results.json,report.html,records/} and the report's address.
set -euo pipefail
cd "$(dirname "$0")/.."
ktsn=$1
# A report of an earlier run must not pass for this one's.
rm -rf out/demo
mkdir -p out/demo

status=0
"$ktsn" bench container --payload 16,64,256,1024 --rounds 3 \
    --json out/demo/results.json --report out/demo/report.html --records || status=$?
[ -s out/demo/report.html ] && echo "report: file://$PWD/out/demo/report.html"
exit "$status"
