# SPDX-License-Identifier: Apache-2.0
"""An older package, this one over it under traffic, and back: the unit of each in a guest, with the configuration of the older one.

In: the clean Debian's tree with both packages beside it, the release build. Out: a line for each step and each
warning of ktsnd, or what was not as it should be.
"""

import pathlib

import guest
from service import document, parts

HERE = pathlib.Path(__file__).resolve().parent
# Three times what a guest takes on two busy CPUs.
LIMIT = 900
STEPS = ("old", "update", "rollback", "update_again", "status")
# The libktsn of c6d2b201 may count a frame as lost that its ktsnd sends in its last instant: at each step.
TWICE = 2 * (len(STEPS) - 2)
# The talker under the older library, and the one under this library.
TALKERS = {"7002": "the older libktsn", "7003": "this libktsn"}


def counters(text):
    """The counters of the pod's attachment, and the frames dropped by reason."""
    attachment, = document(text)["statistics"]["attachments"]
    return {key: attachment[key] for key in ("taken", "sent")}, attachment["dropped"]


def steps(found):
    """A line for each step; a drop that is not the gap's is an error."""
    before, gone = counters(found["old"])
    for name in STEPS[1:]:
        now, dropped = counters(found[name])
        more = {reason: count - gone.get(reason, 0) for reason, count in dropped.items() if count > gone.get(reason, 0)}
        print(f"       {name}: {now['sent'] - before['sent']} sent, dropped {more}", flush=True)
        assert set(more) <= {"daemon_absent"}, f"{name}: {more}"
        assert now["sent"] > before["sent"], f"{name}: {before} {now}"
        before, gone = now, dropped
    return gone.get("daemon_absent", 0)


def check(tree, programs):
    status, said = guest.boot(tree, programs, {"script": HERE / "update.sh", "common": HERE / "common.sh"}, LIMIT)
    found = parts(said)
    assert status == 0 and "end" in found, said[-5000:]
    absent, lost = steps(found), 0
    for port, library in TALKERS.items():
        talked, heard = document(found[f"sent_{port}"]), document(found[f"heard_{port}"])
        print(f"       {library}: {talked['frames_sent']} sent, {heard['frames_received']} received", flush=True)
        assert talked["frames_sent"] == talked["frames_intended"] > 500, talked
        assert not heard["duplicates"] and heard["latency_ns"]["min"] >= 0, heard
        lost += talked["frames_sent"] - heard["frames_received"]
    assert document(found["stream"])["frames_received"] == 50, found["stream"]
    assert lost <= absent <= lost + TWICE, f"{lost} frames lost, {absent} counted as daemon_absent"
    # Each without its time, once.
    warnings = dict.fromkeys(line.split(" ", 1)[1].strip() for line in found["log"].splitlines())
    print("".join(f"       log: {line}\n" for line in warnings), end="", flush=True)
