// SPDX-License-Identifier: Apache-2.0
//! `ktsn debug bundle`: exactly the listed members, beside a ktsnd that has sent, and without one; no payload and no secret in any octet.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ktsn_tests::cli::{err, inside, ktsn, out};
use serde_json::Value;

/// What a bundle may hold, and nothing else. A new member is a decision: does it hold a payload, a secret, an address?
const MEMBERS: [&str; 10] = [
    "contents.json",
    "configuration.toml",
    "state.json",
    "counters.json",
    "status.json",
    "doctor.json",
    "kernel.json",
    "devices.json",
    "tables.txt",
    "log.txt",
];
const PAYLOAD: &str = "payload-of-a-tenant-7";
const SECRET: &str = "hunter2";

/// Unpacks it by tar; its members' names.
fn unpacked(bundle: &Path, to: &Path) -> Vec<String> {
    let listed = Command::new("tar").arg("-tzf").arg(bundle).output().unwrap();
    assert!(listed.status.success(), "{}", err(&listed));
    let status = Command::new("tar").arg("-xzf").arg(bundle).arg("-C").arg(to).status().unwrap();
    assert!(status.success());
    out(&listed).lines().map(|line| line.strip_prefix("ktsn-bundle/").unwrap().to_owned()).collect()
}

fn json(directory: &Path, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(directory.join("ktsn-bundle").join(name)).unwrap()).unwrap()
}

fn missing(directory: &Path) -> Vec<String> {
    let contents = json(directory, "contents.json");
    let members = contents["members"].as_array().unwrap().clone();
    members
        .iter()
        .filter(|member| member["missing"].is_string())
        .map(|member| member["name"].as_str().unwrap().to_owned())
        .collect()
}

/// In the namespace: datagrams with that payload leave, and wait in the ring, while the bundle is made.
const SCRIPT: &str = "\
python3 -c '
import socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 61, struct.pack(\"iI\", time.CLOCK_TAI, 0))
for n in range(500):
    at = time.clock_gettime_ns(time.CLOCK_TAI) + 4000000000 + n
    s.sendmsg([sys.argv[1].encode()], [(socket.SOL_SOCKET, 61, struct.pack(\"Q\", at))], 0, (\"192.0.2.2\", 7000))
print(\"sent\", flush=True)
time.sleep(60)' \"$TENANT\" > sent & \
until [ -s sent ]; do sleep 0.05; done; \
\"$KTSN\" debug bundle -o bundle.tar.gz --config ktsnd.toml; status=$?; kill $!; exit $status";

#[test]
fn a_bundle_has_what_is_listed_and_no_payload_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!("[[port]]\ndevice = \"va\" # of the plant\n[cloud]\ntoken = \"{SECRET}\"\n");
    fs::File::create(directory.path().join("ktsnd.toml")).unwrap().write_all(config.as_bytes()).unwrap();
    let made = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", SCRIPT])
        .current_dir(directory.path())
        .env("TENANT", PAYLOAD)
        .env("KTSN_TOKEN", SECRET)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}{}", out(&made), err(&made));
    let bundle = directory.path().join("bundle.tar.gz");
    assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);
    let names = unpacked(&bundle, directory.path());
    let absent = missing(directory.path());
    let expected: Vec<&str> =
        MEMBERS.into_iter().filter(|name| !absent.iter().any(|absent| absent == name)).collect();
    assert_eq!(names, expected);
    // A ktsnd that runs has left no counters.
    assert_eq!(absent, ["counters.json"]);
    assert_eq!(json(directory.path(), "status.json")["attachments"][0]["interface"], "va");
    // The namespace's own devices, although /sys shows the host's.
    let devices = json(directory.path(), "devices.json")["devices"].clone();
    let shown: Vec<&String> = devices.as_object().unwrap().keys().collect();
    assert_eq!(shown, ["lo", "va", "vb"]);
    assert!(
        devices["va"]["sysfs"].is_null() && devices["va"]["counters"].as_array().unwrap().len() == 16,
        "{devices}"
    );
    assert!(json(directory.path(), "doctor.json")["findings"].as_array().unwrap().len() > 5);
    let kernel = json(directory.path(), "kernel.json");
    assert!(kernel["values"]["/proc/sys/kernel/osrelease"].is_string(), "{kernel}");
    for name in &names {
        let text = fs::read_to_string(directory.path().join("ktsn-bundle").join(name)).unwrap();
        assert!(!text.is_empty(), "{name}");
        for never in [PAYLOAD, SECRET] {
            assert!(!text.contains(never), "{name} has {never}");
        }
    }
    let config = fs::read_to_string(directory.path().join("ktsn-bundle/configuration.toml")).unwrap();
    assert_eq!(config, "[[port]]\ndevice = \"va\" # of the plant\n[cloud]\ntoken = (left out)\n");
}

#[test]
fn without_ktsnd_the_bundle_says_why_and_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let bundle = |words: &[&str]| {
        ktsn().args(["debug", "bundle"]).args(words).current_dir(directory.path()).output().unwrap()
    };
    let made = bundle(&["-o", "b.tar.gz", "--config", "none.toml"]);
    assert!(made.status.success(), "{}", err(&made));
    assert!(
        out(&made).contains("/nonexistent/ktsn/ktsnd.sock") && out(&made).contains("none.toml"),
        "{}",
        out(&made)
    );
    let names = unpacked(&directory.path().join("b.tar.gz"), directory.path());
    assert!(
        names.contains(&"doctor.json".to_owned()) && !names.contains(&"status.json".to_owned()),
        "{names:?}"
    );
    let absent = missing(directory.path());
    assert!(
        ["configuration.toml", "state.json", "status.json"]
            .iter()
            .all(|name| absent.iter().any(|absent| absent == name))
    );
    // What is there is not replaced.
    let again = bundle(&["-o", "b.tar.gz"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).contains("b.tar.gz") && err(&again).contains("--output"), "{}", err(&again));
}
