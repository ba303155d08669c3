// SPDX-License-Identifier: Apache-2.0
//! `KTSN_EMULATE_HWTSTAMP`: claimed for the attachment's interface when asked for, and never else.

use std::collections::BTreeMap;
use std::path::Path;

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Peer};

/// On the loopback interface, with rights and without.
const SCRIPTS: [&str; 2] = ["hwtstamp lo", "user 65534\nhwtstamp lo"];

/// Runs a script on the loopback interface (index 1), with the variable or without.
fn run(libc: Libc, run_dir: &Path, variable: Option<&str>, script: &str) -> String {
    let mut command = hook::scenario(libc, run_dir, script, 9);
    if let Some(value) = variable {
        command.env("KTSN_EMULATE_HWTSTAMP", value);
    }
    let output = command.output().expect("program");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn plain(libc: Libc, script: &str) -> String {
    String::from_utf8(hook::unhooked(libc, script, 9).output().expect("program").stdout).expect("text")
}

fn values(text: &str) -> BTreeMap<&str, i64> {
    text.lines()
        .map(|line| line.split_once(' ').expect("words"))
        .map(|(a, b)| (a, b.parse().expect("number")))
        .collect()
}

#[test]
fn asked_for_it_is_claimed_for_the_attachments_interface() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    for libc in LIBCS {
        for script in SCRIPTS {
            let text = run(libc, run_dir.path(), Some("1"), script);
            let values = values(&text);
            // All modes but SYS_HARDWARE; on and off; none and all; no clock.
            assert_eq!((values["info"], values["modes"], values["phc"]), (0, 95, -1), "{text}");
            assert_eq!((values["tx-types"], values["rx-filters"]), (3, 3));
            assert_eq!((values["set"], values["set-config"]), (0, 101));
            assert_eq!((values["get"], values["get-config"]), (0, 101));
            assert_eq!((values["one-step"], values["off"], values["off-config"]), (-34, 0, 0)); // ERANGE
            let kernels = plain(libc, script);
            let kernels = self::values(&kernels);
            for same in ["driver", "nobody", "null", "no-socket", "pending", "pending-octets"] {
                assert_eq!(values[same], kernels[same], "{same}");
            }
        }
        let text = run(libc, run_dir.path(), Some("1,phc=3"), SCRIPTS[0]);
        assert_eq!(values(&text)["phc"], 3);
    }
    // Asking about an interface attaches, as a timed socket does.
    assert_eq!(peer.events().clients, 6);
}

#[test]
fn else_the_kernels_answers_stand() {
    let run_dir = hook::open_directory();
    for libc in LIBCS {
        for script in SCRIPTS {
            let kernels = plain(libc, script);
            let nobody_there = run(libc, run_dir.path(), Some("1"), script);
            assert_eq!(nobody_there, kernels);
            let peer = Peer::start(run_dir.path(), Behaviour::default());
            for variable in [None, Some("0"), Some(""), Some("yes"), Some("1,phc="), Some("1,phc=1x")] {
                assert_eq!(run(libc, run_dir.path(), variable, script), kernels, "{variable:?}");
            }
            assert_eq!(peer.events().clients, 0);
            peer.change(|behaviour| behaviour.interface_index = 7);
            assert_eq!(run(libc, run_dir.path(), Some("1"), script), kernels, "another interface");
        }
    }
}
