# SPDX-License-Identifier: Apache-2.0
"""KTSN beside the kernel's own keepers of transmit times, in one run inside a host. All are interpreted alike: figures are compared, none
is judged alone."""

import json

from host import whole_only
from reference import CARRIES, version

PATHS = ("ktsn", "pod-etf", "bare-etf", "pod-fq", "bare-fq")
# The frames are few, and sent far ahead.
RUN = f"ktsn-bench bench container --path {','.join(PATHS)} --lead 40ms --period 100ms --seconds 10 --rounds 2 --json /tmp/rivals.json"


@whole_only
def etf_and_fq(plant):
    """no row of etf or fq that loses as few and has as few early is nearer to its time than KTSN"""
    plant.a.run("dpkg -i --force-unsafe-io /share/ktsn-bench.deb")
    said = plant.a.run(RUN, 1200)
    document = json.loads(plant.a.run("cat /tmp/rivals.json"))
    rows = [one for one in document["series"] if one["round"] == "all"]
    for one in rows:
        offset = one["wire_offset_ns"]["p50"] / 1000 if one.get("wire_offset_ns") else None
        print(f"       {one['path']}: {one['lost']} of {one['frames_sent']} lost, {one['early']} early, offset {offset} us at p50", flush=True)
    expected = [path for path in PATHS if version(plant.a) >= CARRIES or not path.startswith("pod-")]
    missing = [path for path in expected if not any(one["path"].startswith(path) for one in rows)]
    assert not missing, f"no row of {missing}: {said}"
    wrong = [check for check in document["checks"] if check["outcome"] == "failed"]
    assert not wrong and len(document["checks"]) >= len(expected) - 1, f"{wrong} of {document['checks']}"


SCENES = (etf_and_fq,)
