// SPDX-License-Identifier: Apache-2.0
//! Names of hosts, clocks by recorded answers, and what is shown of failures. ssh itself runs in `tests/tests/remote.rs`.

use super::clock::{ClockError, ClockFacts, Holder, check, of_chrony, of_ptp4l};
use super::hosts::{Passage, impossible};
use super::*;
use ktsn_time::{Nanos, Tai};

/// `chronyc -n -c tracking` of chrony 4.3.
const CHRONY: &str = "C0A80101,192.168.1.1,3,1764155000.123456789,-0.000000150,0.000000021,0.000000180,-5.123,0.001,0.012,0.000200000,0.000010000,2.1,Normal\n";
const FREE: &str = "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,1.000000000,0.0,Not synchronised\n";
/// `pmc -u -b 0 'GET TIME_STATUS_NP'` of linuxptp 3.1.
const PTP4L: &str = "sending: GET TIME_STATUS_NP\n\t525400.fffe.123456-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP \n\t\tmaster_offset              -42\n\t\tingress_time               1764155000123456789\n\t\tgmPresent                  true\n\t\tgmIdentity                 001122.fffe.334455\n";

#[test]
fn hosts_are_named_so_that_ssh_takes_no_option_from_them() {
    for good in ["ssh:plc", "ssh:root@192.0.2.1", "ssh:a.b-c_d", "ssh:[fe80::1%eth0]"] {
        assert_eq!(good.parse::<Target>().unwrap().to_string(), good);
    }
    for bad in [
        "",
        "plc",
        "ssh:",
        "ssh:-oProxyCommand=x",
        "ssh:a b",
        "ssh:root@-x",
        "ssh:@x",
        "ssh:x@",
        "ssh:a;b",
        "ssh:a\n",
    ] {
        assert!(bad.parse::<Target>().is_err(), "{bad}");
    }
}

#[test]
fn words_are_quoted_for_the_other_hosts_shell() {
    assert_eq!(quoted("a b"), "'a b'");
    assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
    assert_eq!((quoted(""), quoted("--a=b,c")), ("''".to_owned(), "--a=b,c".to_owned()));
}

#[test]
fn chronys_bound_is_its_offset_with_dispersion_and_half_the_delay() {
    let Some(Holder::Chrony { source, bound_ns, update_seconds }) = of_chrony(CHRONY) else {
        panic!("no source")
    };
    assert_eq!((source.as_str(), bound_ns, update_seconds), ("192.168.1.1", 110_151, 2.1));
    for bad in [
        FREE,
        "",
        "506 Cannot talk to daemon\n",
        "a,b,c\n",
        &CHRONY.replace("0.000200000", "nan"),
        &CHRONY.replace("2.1,", "2.1,x,"),
    ] {
        assert_eq!(of_chrony(bad), None, "{bad}");
    }
}

#[test]
fn ptp4ls_offset_is_taken_with_its_grandmaster() {
    let expected = Holder::Ptp4l { source: "001122.fffe.334455".to_owned(), offset_ns: -42 };
    assert_eq!(of_ptp4l(PTP4L), Some(expected));
    for bad in [
        "",
        "sending: GET TIME_STATUS_NP\n",
        &PTP4L.replace("gmPresent                  true", "gmPresent false"),
        &PTP4L.replace("-42", "x"),
    ] {
        assert_eq!(of_ptp4l(bad), None, "{bad}");
    }
}

fn ptp(source: &str, offset_ns: i64) -> ClockFacts {
    let holder = Holder::Ptp4l { source: source.to_owned(), offset_ns };
    ClockFacts { synchronised: true, tai_offset_seconds: 37, holder }
}

#[test]
fn clocks_make_a_result_only_within_the_bound_that_was_asked_for() {
    let wanted = Nanos::from_micros(1);
    let here = ptp("gm", -400);
    assert_eq!(check(&here, &ptp("gm", 500), "plc", wanted), Ok(Nanos::new(900)));
    let refused = |there: &ClockFacts| check(&here, there, "plc", wanted).unwrap_err();
    assert!(
        matches!(refused(&ptp("gm", 700)), ClockError::TooFar { bound, .. } if bound == Nanos::new(1100))
    );
    assert!(matches!(refused(&ptp("other", 1)), ClockError::Masters { .. }));
    assert!(matches!(
        refused(&ClockFacts { tai_offset_seconds: 0, ..ptp("gm", 1) }),
        ClockError::Tai { here: 37, there: 0, .. }
    ));
    assert!(matches!(refused(&ClockFacts { synchronised: false, ..ptp("gm", 1) }), ClockError::Lost { .. }));
    let free = ClockFacts { holder: Holder::Nothing, ..ptp("gm", 1) };
    assert_eq!(refused(&free), ClockError::Free { host: "plc".to_owned() });
    assert!(
        check(&free, &here, "plc", wanted)
            .unwrap_err()
            .to_string()
            .starts_with("the clock of this host is not held")
    );
    let chrony = |update_seconds: f64, bound_ns: i64| ClockFacts {
        holder: Holder::Chrony { source: "192.0.2.1".to_owned(), bound_ns, update_seconds },
        ..ptp("gm", 1)
    };
    assert!(matches!(refused(&chrony(4096.0, 1)), ClockError::Lost { .. }));
    assert!(matches!(refused(&chrony(16.0, -600)), ClockError::Lost { .. }));
    assert_eq!(check(&here, &chrony(16.0, 100), "plc", wanted), Ok(Nanos::new(500)));
    // No sum of two bounds is smaller than one of them.
    assert!(check(&ptp("gm", i64::MIN), &ptp("gm", i64::MIN), "plc", wanted).is_err());
}

#[test]
fn facts_travel_as_json_and_nothing_else_is_taken() {
    let facts = ptp("gm", -3);
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<ClockFacts>(&text).unwrap(), facts);
    for bad in ["{}", "[]", &text.replace("ptp4l", "x"), &text.replace("}}", "},\"more\":1}")] {
        assert!(serde_json::from_str::<ClockFacts>(bad).is_err(), "{bad}");
    }
}

#[test]
fn failures_are_told_apart_by_ssh_s_status() {
    use std::os::unix::process::ExitStatusExt as _;
    let remote =
        Remote { target: "ssh:plc".parse().unwrap(), ssh_config: None, ktsn: "/opt/ktsn".to_owned() };
    let failure =
        |status: i32| remote.failure(&["/opt/ktsn", "a b"], ExitStatus::from_raw(status << 8), "said");
    let text = failure(255).to_string();
    assert!(
        matches!(failure(255), RemoteError::Connection { .. })
            && text.contains("`ssh -o BatchMode=yes plc true`"),
        "{text}"
    );
    assert_eq!(
        failure(127).to_string(),
        "ssh:plc: there is no program /opt/ktsn; copy this one there, or name its path (--remote-ktsn)"
    );
    assert!(failure(2).to_string().starts_with("ssh:plc: `/opt/ktsn 'a b'` failed (exit status: 2): said"));
    assert_eq!([failure(255).exit_status(), failure(2).exit_status()], [3, 1]);
}

#[test]
fn messages_arrive_whole_in_pieces_of_any_length() {
    use super::frames::{Decoder, Ended, Message, Violation};
    let all = [
        Message::Started,
        Message::Stdout(b"a line\n"),
        Message::Ready,
        Message::File(3),
        Message::Data(b"ab"),
        Message::Data(b"c"),
        Message::Stderr(b"words"),
        Message::Ended(Ended::Killed(9)),
        Message::NoFile(b"why"),
        Message::File(0),
    ];
    let mut octets = Vec::new();
    all.iter().for_each(|message| message.write(&mut octets).unwrap());
    for piece in [1, 2, 7, octets.len()] {
        let (mut decoder, mut again, mut count) = (Decoder::default(), Vec::new(), 0);
        for part in octets.chunks(piece) {
            let mut hear = |message: Message<'_>| {
                count += 1;
                message.write(&mut again).unwrap();
            };
            decoder.take(part, &mut hear).unwrap();
        }
        assert_eq!((count, &again), (all.len(), &octets));
    }
    let broken = |messages: &[Message<'_>]| {
        let mut octets = Vec::new();
        messages.iter().for_each(|message| message.write(&mut octets).unwrap());
        Decoder::default().take(&octets, &mut |_| ())
    };
    let ended = Message::Ended(Ended::Exited(0));
    for messages in [
        &[Message::Ready][..],
        &[Message::Started, Message::Started],
        &[Message::Started, Message::Ready, Message::Ready],
        &[Message::Started, ended, ended],
        &[Message::Started, ended, Message::Stdout(b"x")],
        &[Message::Started, Message::Data(b"x")],
        &[Message::Started, Message::File(1), Message::Data(b"xy")],
        &[Message::Started, Message::File(1), Message::Stdout(b"x")],
    ] {
        assert_eq!(broken(messages), Err(Violation::Turn), "{messages:?}");
    }
    let long = vec![0; super::frames::PAYLOAD_OCTETS_MAX + 1];
    assert!(Message::Stdout(&long).write(&mut Vec::new()).is_err());
}

#[test]
fn orders_are_lines_and_names_stay_below_their_directory() {
    use super::frames::{Order, is_file_name};
    for order in [
        Order::Alive,
        Order::End,
        Order::Fetch("out/rt.json".to_owned()),
        Order::Say("{\"a\": 1}".to_owned()),
    ] {
        assert_eq!(Order::of_line(&order.to_string()), Some(order));
    }
    for bad in ["ende", "fetch", "fetch ../x", "fetch /x", "run x"] {
        assert_eq!(Order::of_line(bad), None, "{bad}");
    }
    let long = "x".repeat(201);
    for bad in ["", ".", "..", "a/..", "/a", "a//b", "a/", ".a", "a b", "a\n", "a/b/c/d/e", long.as_str()] {
        assert!(!is_file_name(bad), "{bad}");
    }
    assert!(is_file_name("a-b_c.1/rt.json"));
}

/// A host that says nothing, closes its output and stays, or says too much holds nothing up.
#[test]
fn a_short_answer_is_not_waited_for_without_end() {
    let ask = |script: &str, within: u64| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]);
        short_answer(command, Duration::from_millis(within)).unwrap()
    };
    for script in ["exec sleep 100", "exec >&-; exec sleep 100"] {
        let began = std::time::Instant::now();
        assert!(matches!(ask(script, 200), Short::Late), "{script}");
        assert!(began.elapsed() < Duration::from_secs(50), "{script}");
    }
    assert!(matches!(ask("exec yes", 60_000), Short::TooLong));
    let Short::Whole(status, said, words) = ask("echo so; echo why >&2; exit 3", 60_000) else {
        panic!("late")
    };
    assert_eq!((status.code(), &said[..], &words[..]), (Some(3), &b"so\n"[..], &b"why\n"[..]));
}

#[test]
fn an_instant_outside_of_the_run_or_a_frame_before_its_time_shows_clocks_that_do_not_agree() {
    let at = |millis: i64| Tai::from_nanos(100_000_000_000).saturating_add(Nanos::from_millis(millis));
    let (run, within) = ([at(0), at(1_000)], Nanos::from_millis(500));
    let instants = |millis: &[i64]| impossible(run, within, millis.iter().map(|&millis| at(millis)), []);
    // Two seconds and the clocks' bound on either side.
    assert_eq!(instants(&[0, 500, 1_000, -2_500, 3_500]), None);
    for odd in [-2_501, 3_501] {
        let problem = instants(&[0, odd]).unwrap();
        assert!(problem.contains(&format!("at {} ns, outside of the run", at(odd).as_nanos())), "{problem}");
    }
    let passage = |early: i64| {
        let passage =
            Passage { sequence: 7, sent: at(0), arrived: at(-early), early_max: Nanos::from_millis(2) };
        impossible(run, within, [], [passage])
    };
    assert_eq!((passage(-5), passage(2)), (None, None));
    let problem = passage(3).unwrap();
    assert!(problem.starts_with("the clocks do not agree: frame 7 arrived "), "{problem}");
}
