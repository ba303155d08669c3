// SPDX-License-Identifier: Apache-2.0
//! The built programs, started as a user starts them.
//!
//! In: arguments. Out: exit status and what was printed. Every command here gets a run directory of its own, so that a
//! ktsnd of this machine is never met.

use std::path::Path;
use std::process::{Command, Output};

use crate::hook;

/// The folder with the command line and the daemon, built once for each test binary.
pub fn folder() -> &'static Path {
    hook::ktsn().parent().expect("a folder")
}

/// `ktsn` with the real library and a run directory that does not exist.
#[must_use]
pub fn ktsn() -> Command {
    let mut command = Command::new(folder().join("ktsn"));
    command
        .env("KTSN_LIB", hook::library())
        .env("KTSN_RUN_DIR", "/nonexistent/ktsn")
        .env("KTSN_CACHE_DIR", "/proc/none")
        .env_remove("LD_PRELOAD")
        .env_remove("KTSN_POLICY")
        .env_remove("KTSN_LOG");
    command
}

/// Runs `ktsn` with these arguments.
#[must_use]
pub fn run(arguments: &[&str]) -> Output {
    ktsn().args(arguments).output().expect("ktsn starts")
}

/// Standard output.
#[must_use]
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error.
#[must_use]
pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two connected devices, then `ktsn` in place of the shell.
const INSIDE: &str = "ip link set lo up && ip link add va type veth peer name vb address 02:00:00:00:00:02 && ip addr add 192.0.2.1/24 dev va \
                      && ip link set va up && ip link set vb up && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev va && exec \"$@\"";

/// Python for the scripts of [`inside`]: prints the JSON of `ktsn status` once so many timed frames of the first attachment are the
/// kernel's, or taken and sent or dropped; what there is then after half a minute.
const COUNTED: &str = r#"
import json, os, subprocess, sys, time
end = time.monotonic() + 30
while True:
    text = subprocess.run([os.environ["KTSN"], "status", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    of = json.loads(text)["statistics"]["attachments"][0]
    bypassed, dropped = (sum(of.get(name, {}).values()) for name in ("bypassed", "dropped"))
    if of["taken"] + bypassed >= int(sys.argv[1]) and of["sent"] + of["passed"] + dropped >= of["taken"] or time.monotonic() > end:
        break
    time.sleep(0.05)
print(text)
"#;

/// `ktsn` with these arguments in a namespace with the devices `va` and `vb`. `python3 -c "$COUNTED" N` is the status once N frames are
/// counted.
#[must_use]
pub fn inside(arguments: &[&str]) -> Command {
    // Whoever runs the tests in the background may ignore SIGINT.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "unshare", "--net", "sh", "-c", INSIDE, "sh"])
        .arg(folder().join("ktsn"))
        .args(arguments)
        .env("KTSN_LIB", hook::library())
        .env("KTSN", folder().join("ktsn"))
        .env("COUNTED", COUNTED)
        .env("KTSN_CACHE_DIR", "/proc/none")
        .env_remove("KTSN_RUN_DIR")
        .env_remove("LD_PRELOAD");
    command
}
