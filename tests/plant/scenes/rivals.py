# SPDX-License-Identifier: Apache-2.0
"""KTSN beside the kernel's own keepers of transmit times, in one run inside a host."""

import json

from host import whole_only

# QEMU interprets: the frames are few, and sent far ahead.
RUN = "ktsn-bench bench container --path ktsn,pod-etf,bare-etf,pod-fq --lead 40ms --period 100ms --seconds 10 --rounds 2 --json /tmp/rivals.json"
PATHS = {"ktsn", "pod-etf", "bare-etf", "pod-fq"}


@whole_only
def etf_and_fq(plant):
    """etf at no delta loses as few, has as few early and less offset than KTSN; pod-fq beside them"""
    plant.a.run("dpkg -i --force-unsafe-io /share/ktsn-bench.deb")
    said = plant.a.run(RUN, 900)
    document = json.loads(plant.a.run("cat /tmp/rivals.json"))
    rows = [one for one in document["series"] if one["round"] == "all"]
    assert PATHS <= {one["path"].split("us")[0].rstrip("-0123456789") for one in rows}, said
    for one in rows:
        offset = one["wire_offset_ns"]["p50"] / 1000 if one.get("wire_offset_ns") else None
        print(f"       {one['path']}: {one['lost']} of {one['frames_sent']} lost, {one['early']} early, offset {offset} us at p50", flush=True)
    held = {one["to"]: one["holds"] for one in document["comparisons"] if one["metric"] == "beaten_in_all"}
    assert {name.rsplit("-", 1)[0] for name in held} == {"pod-etf", "bare-etf"}, f"a path of etf delivers too little at each delta: {held}"
    assert all(held.values()), held


SCENES = (etf_and_fq,)
