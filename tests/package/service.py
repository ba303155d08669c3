# SPDX-License-Identifier: Apache-2.0
"""ktsnd as systemd starts it: the package's unit in a guest, from its installation to its removal.

In: the clean Debian's tree with the package beside it, the release build. Out: nothing, or what was not as it should be.
"""

import json
import pathlib
import re

import guest

HERE = pathlib.Path(__file__).resolve().parent
UNIT = HERE.parents[1] / "examples/systemd/ktsnd.service"
# Three times what a guest takes on two busy CPUs.
LIMIT = 400
WORKS = ("clock_gettime of /dev/ptp0", "adjtimex", "bpf", "pidfd_getfd", "setns of a network")
FORBIDDEN = ("setns of mounts", "settimeofday", "mount", "reboot")


def parts(said):
    """{name: text} of what the script printed."""
    words = re.split(r"^== (\w+)\n", said, flags=re.M)[1:]
    return dict(zip(words[::2], words[1::2]))


def document(text):
    """The one JSON document of a part; programs may warn in lines before and after it."""
    return json.JSONDecoder().raw_decode(text, text.index("{"))[0]


def probed(text):
    """In the unit's own sandbox: the calls that ktsnd or its ports need, and some that they do not."""
    answers = dict(line.split(": ", 1) for line in text.splitlines())
    expected = dict.fromkeys(WORKS, "ok") | dict.fromkeys(FORBIDDEN, "Operation not permitted")
    assert answers == expected, answers


def exposed(text):
    """systemd's measure is within its bound (the script asked), and the unit says why of each line that stays off."""
    findings = json.loads(text[text.index("["):text.rindex("]") + 1])
    unit = UNIT.read_text()
    off = [finding["name"].split("=")[0] for finding in findings if float(finding["exposure"] or 0) > 0]
    unnamed = sorted({name for name in off if name not in unit})
    assert len(findings) > 50 and len(off) > 5 and not unnamed, f"no reason in the unit for {unnamed} of {off}: {findings}"


def sent(text):
    attachment, = document(text)["statistics"]["attachments"]
    assert not attachment["dropped"], attachment
    return attachment["sent"]


def looked(status, doctor):
    """`ktsn status` and `ktsn doctor` find the machine as it is."""
    found = document(status)
    attachment, = found["attachments"]
    assert (attachment["name"], attachment["destinations"]) == ("talker/eth0", ["10.0.0.0/24"]), attachment
    assert (found["ports"][0]["device"], found["ports"][0]["adapter"], found["ports"][0]["up"]) == ("eth0", "af_xdp", True), found["ports"]
    assert found["health"]["serving"] and not any(thread["is_stuck"] for thread in found["health"]["threads"]), found["health"]
    # The kernel's own answer, by adjtimex.
    assert found["health"]["clock"]["reason"] == "the kernel says: not synchronised", found["health"]
    findings = {finding["name"]: finding for finding in document(doctor)["findings"]}
    for name, state, value in (("network_devices", "ok", "eth0 (e1000e): 1 transmit queues, /dev/ptp0"), ("preemption", "ok", "PREEMPT_RT"),
                               ("clock_synchronised", "warn", "no")):
        assert findings[name]["state"] == state and findings[name]["value"].startswith(value), findings[name]


def check(tree, programs):
    status, said = guest.boot(tree, programs, {"script": HERE / "service.sh", "common": HERE / "common.sh", "probe": HERE / "probe.pl"}, LIMIT)
    found = parts(said)
    assert status == 0 and "end" in found, said[-5000:]
    assert found["install"].rstrip().endswith("\nenabled"), found["install"]
    probed(found["probe"])
    exposed(found["security"])
    assert document(found["heard"])["frames_received"] == 50, found["heard"]
    assert sent(found["status"]) - sent(found["before"]) == 50, (found["before"], found["status"])
    looked(found["status"], found["doctor"])
    assert document(found["killed"])["frames_received"] == 20, found["killed"]
    # The run directory stays when the service has stopped; a configuration that is wrong is status 2, without another start.
    assert {"lock", "state.json"} <= set(found["wrong"].split()) and found["wrong"].split()[-2:] == ["2", "0"], found["wrong"]
    assert found["removed"].rstrip().endswith("\nnot-found"), found["removed"]
