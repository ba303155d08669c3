// SPDX-License-Identifier: Apache-2.0
//! The period that a listener knows: from its environment, its daemon or its socket option. What is judged is how many arrivals it takes
//! until one is expected, and what the option answers; never how long anything took.

use std::process::{Output, Stdio};

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Peer};
use ktsn_time::Nanos;

/// The period of what `arrivals-few` receives.
const PERIOD: Nanos = Nanos::from_millis(50);
/// Arrivals on a busy machine may be uneven: then a listener that could expect them has another try. In a slow hour 40 were too few.
const TRIES: usize = 400;

/// Whether a listener asks for a grant after so many arrivals, and what its script printed.
fn asks(libc: Libc, script: &str, environment: Option<&str>, of_daemon: Nanos) -> bool {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour { receive_period: of_daemon, ..Behaviour::default() });
    let mut command = hook::scenario(libc, run_dir.path(), script, 9);
    command.env("KTSN_RECEIVE", "expect").stdin(Stdio::null());
    command.envs(environment.map(|period| ("KTSN_RECEIVE_PERIOD", period)));
    let output = command.output().expect("program");
    let values = hook::values(&output);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(values["received"] > 0 && values.get("stated").is_none_or(|answer| *answer == 0), "{values:?}");
    let events = peer.events();
    assert_eq!(events.clients, 1, "{script}: it attaches before its first arrival");
    !events.expects.is_empty()
}

fn asks_sometimes(libc: Libc, script: &str, environment: Option<&str>, of_daemon: Nanos) {
    let is_asked = (0..TRIES).any(|_| asks(libc, script, environment, of_daemon));
    assert!(is_asked, "{script} {environment:?} {of_daemon} {libc:?}: no arrival is expected");
}

fn never_asks(script: &str, environment: Option<&str>, of_daemon: Nanos) {
    for _ in 0..3 {
        assert!(!asks(Libc::Gnu, script, environment, of_daemon), "{script} {environment:?} {of_daemon}");
    }
}

/// Four arrivals are enough where the period is known, by whichever way, and never where none is, or a wrong one.
#[test]
fn a_known_period_needs_one_arrival_less() {
    let option = format!("arrivals-few recv period={}", PERIOD.get());
    never_asks("arrivals-few recv", None, Nanos::ZERO);
    never_asks("arrivals-few recv", Some("20ms"), Nanos::ZERO);
    never_asks("arrivals-few recv", None, Nanos::from_seconds(1));
    // Out of the predictor's bounds: no library believes it.
    never_asks("arrivals-few recv", None, Nanos::new(-1));
    asks_sometimes(Libc::Gnu, "arrivals-few recv", Some("50ms"), Nanos::ZERO);
    asks_sometimes(Libc::Gnu, "arrivals-few recv", None, PERIOD);
    for libc in LIBCS {
        asks_sometimes(libc, &option, None, Nanos::ZERO);
    }
    asks_sometimes(Libc::Gnu, "arrivals-few epoll", Some("50000us"), Nanos::ZERO);
    // The same without a period, with one arrival more: what a wrong period takes, too.
    asks_sometimes(Libc::Gnu, "arrivals-few recv count=6", None, Nanos::ZERO);
    asks_sometimes(Libc::Gnu, "arrivals-few recv count=6", Some("20ms"), Nanos::ZERO);
}

/// The socket option goes before the environment, and the environment before the daemon.
#[test]
fn what_is_nearest_to_the_socket_counts() {
    let option = |nanos: i64| format!("arrivals-few recv period={nanos}");
    never_asks(&option(20_000_000), Some("50ms"), PERIOD);
    never_asks("arrivals-few recv", Some("20ms"), PERIOD);
    asks_sometimes(Libc::Gnu, &option(PERIOD.get()), Some("20ms"), Nanos::from_millis(30));
    asks_sometimes(Libc::Gnu, "arrivals-few recv", Some("50ms"), Nanos::from_millis(30));
}

const ENOPROTOOPT: i64 = -92;
/// What the kernel says of a level that it does not know: to setsockopt (some kernels the other one, of a local socket), and to getsockopt.
const REFUSALS: [i64; 2] = [ENOPROTOOPT, -95];

#[test]
fn the_socket_option_is_checked_and_belongs_to_the_socket() {
    for libc in LIBCS {
        let run_dir = hook::open_directory();
        let mut command = hook::scenario(libc, run_dir.path(), "period-option", 9);
        command.env("KTSN_RECEIVE", "expect").env("KTSN_RECEIVE_PERIOD", "3ms");
        let output = command.output().expect("program");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let all =
            |what: &str| -> Vec<&str> { text.lines().filter_map(|line| line.strip_prefix(what)).collect() };
        assert_eq!(all("good "), ["0"; 4], "{text}");
        // The last one is 0: the environment's counts again.
        assert_eq!(all("read "), ["1", "1", "1", "0"], "{text}");
        assert_eq!(all("bad "), ["-22"; 5], "{text}");
        let values = hook::values(&output);
        for (what, value) in [
            ("at_first", 3_000_000),
            ("short", -22),
            ("long", -22),
            ("null", -14),
            ("nowhere", -14),
            ("no_room", -22),
            ("name", ENOPROTOOPT),
            ("kept", 7_000_000),
            ("version_6", 0),
            ("stream", ENOPROTOOPT),
            ("none", -9),
            ("duplicate", 7_000_000),
            ("new", 3_000_000),
        ] {
            assert_eq!(values[what], value, "{what} {libc:?}: {text}");
        }
        assert!(REFUSALS.contains(&values["local"]), "{text}");
    }
}

/// Without libktsn, or where it does not expect, the kernel answers: it has no such option.
#[test]
fn the_kernel_knows_no_such_option() {
    let run_dir = hook::open_directory();
    for mut command in [
        hook::unhooked(Libc::Gnu, "period-option", 9),
        hook::scenario(Libc::Gnu, run_dir.path(), "period-option", 9),
    ] {
        let values = hook::values(&command.output().expect("program"));
        for what in ["at_first", "no_room", "kept", "duplicate", "new", "local"] {
            assert!(REFUSALS.contains(&values[what]), "{what}: {values:?}");
        }
        for what in ["good", "bad", "short", "long", "null", "nowhere", "name", "version_6", "stream"] {
            assert_eq!(values[what], ENOPROTOOPT, "{what}: {values:?}");
        }
        assert_eq!((values["read"], values["none"]), (0, -9), "{values:?}");
    }
}

/// A period that is none is named in one line, and the program receives as the kernel has it: its socket has no option either.
#[test]
fn a_wrong_period_in_the_environment_is_named() {
    let run = |period: &str, log: Option<&str>, how: &str| -> Output {
        let run_dir = hook::open_directory();
        let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "period-option", 9);
        command.env("KTSN_RECEIVE", how).env("KTSN_RECEIVE_PERIOD", period);
        command.envs(log.map(|log| ("KTSN_LOG", log))).output().expect("program")
    };
    for period in ["49us", "10001ms", "1", "1 ms", "never", &"9".repeat(100)] {
        let output = run(period, None, "expect");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = format!(
            "ktsn: KTSN_RECEIVE_PERIOD is '{}': this program receives",
            &period[..period.len().min(40)]
        );
        assert!(
            line.starts_with(&named) && line.contains("from 50us to 10s") && line.lines().count() == 1,
            "{line}"
        );
        assert_eq!(hook::values(&output)["good"], ENOPROTOOPT);
    }
    assert!(run("49us", Some("off"), "expect").stderr.is_empty());
    assert!(run("49us", None, "kernel").stderr.is_empty(), "what has no effect needs no word");
    let output = run("", None, "expect");
    assert!(output.stderr.is_empty() && hook::values(&output)["at_first"] == 0, "an empty one is none");
}
