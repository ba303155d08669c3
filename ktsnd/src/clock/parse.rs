// SPDX-License-Identifier: Apache-2.0
//! What `pmc` and `chronyc` print about the clock. In: their text. Out: a reading. Pure; the text may be anything.

use ktsn_time::Nanos;

use super::judge::Reading;

/// `pmc -u -b 0 'GET TIME_STATUS_NP' 'GET PORT_DATA_SET'`: ptp4l follows a grandmaster, or is one, and how far off it is.
pub(super) fn pmc(text: &str) -> Reading {
    let mut fields = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?))
    });
    let (mut offset, mut has_master, mut state) = (None, None, None);
    for (name, value) in &mut fields {
        match name {
            "master_offset" => offset = value.parse::<i64>().ok(),
            "gmPresent" => has_master = value.parse::<bool>().ok(),
            // Of several ports the one that follows counts.
            "portState" if state != Some("SLAVE") => state = Some(value),
            _ => {}
        }
    }
    let Some(has_master) = has_master else {
        return Reading::bad("ptp4l does not answer");
    };
    match state {
        Some("SLAVE") if has_master => match offset {
            Some(offset) => Reading::good(Some(Nanos::new(offset.saturating_abs()))),
            None => Reading::bad("ptp4l does not tell how far off the clock is"),
        },
        Some("GRAND_MASTER" | "MASTER") if !has_master => Reading::good(None),
        Some(state) => {
            Reading::bad(format!("ptp4l does not follow a grandmaster: its port is {}", word(state)))
        }
        None => Reading::bad("ptp4l has no port"),
    }
}

/// `chronyc -c tracking`: one line of fourteen fields, separated by commas.
pub(super) fn chronyc(text: &str) -> Reading {
    let fields: Vec<&str> = text.lines().next().unwrap_or_default().trim().split(',').collect();
    let [_, _, _, _, offset, _, _, _, _, _, delay, dispersion, _, leap] = fields[..] else {
        return Reading::bad("chronyd does not answer");
    };
    let seconds = |text: &str| {
        let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite())?;
        Some(Nanos::new((seconds.abs() * 1e9).min(9e18) as i64))
    };
    match (leap, seconds(offset), seconds(delay), seconds(dispersion)) {
        ("Normal" | "Insert second" | "Delete second", Some(offset), Some(delay), Some(dispersion)) => {
            // RFC 5905: the clock is off by no more than this.
            let root = Nanos::new(delay.get() / 2).saturating_add(dispersion);
            Reading::good(Some(offset.saturating_add(root)))
        }
        ("Not synchronised", ..) => Reading::bad("chronyd says: not synchronised"),
        _ => Reading::bad(format!("chronyd answers {}", word(leap))),
    }
}

/// A word of another program, fit for a log line.
fn word(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(state: &str, has_master: bool, offset: &str) -> String {
        format!(
            "sending: GET TIME_STATUS_NP\n\t00a069.fffe.000001-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP\n\
             \t\tmaster_offset              {offset}\n\t\tingress_time               1700000000000000000\n\
             \t\tgmPresent                  {has_master}\n\t\tgmIdentity                 00a069.fffe.000002\n\
             sending: GET PORT_DATA_SET\n\t\tportIdentity            00a069.fffe.000001-1\n\
             \t\tportState               {state}\n"
        )
    }

    #[test]
    fn ptp4l() {
        assert_eq!(pmc(&status("SLAVE", true, "-37")), Reading::good(Some(Nanos::new(37))));
        assert_eq!(pmc(&status("MASTER", false, "0")), Reading::good(None), "it is the grandmaster");
        // A boundary clock: one port follows, the others lead.
        let two = status("SLAVE", true, "5") + "\t\tportState               MASTER\n";
        assert_eq!(pmc(&two), Reading::good(Some(Nanos::new(5))));
        for (text, part) in [
            (status("UNCALIBRATED", true, "9"), "UNCALIBRATED"),
            (status("SLAVE", false, "9"), "SLAVE"),
            (status("LISTENING", false, "0"), "LISTENING"),
            (status("SLAVE", true, "far"), "how far"),
            (String::new(), "does not answer"),
            ("sending: GET TIME_STATUS_NP\n".to_owned(), "does not answer"),
        ] {
            let fault = pmc(&text).fault.unwrap();
            assert!(fault.contains(part), "{fault}");
        }
    }

    #[test]
    fn chronyd() {
        let line = |leap: &str| {
            format!(
                "A29FC87B,162.159.200.123,4,1700000000.123,-0.000001500,0.000002,0.000010,-12.3,0.001,0.02,0.004,0.0005,64.2,{leap}\n"
            )
        };
        assert_eq!(chronyc(&line("Normal")), Reading::good(Some(Nanos::new(2_501_500))));
        assert!(chronyc(&line("Not synchronised")).fault.unwrap().contains("not synchronised"));
        assert!(chronyc("506 Cannot talk to daemon\n").fault.is_some());
        assert!(chronyc("").fault.is_some());
        assert!(chronyc(&line("Normal").replace("0.0005", "inf")).fault.is_some());
    }

    proptest! {
        #[test]
        fn anything_may_come(text in ".{0,200}", numbers in "[-0-9.e,a-zA-Z \\n]{0,200}") {
            for text in [text, numbers.clone(), format!("gmPresent true\nportState SLAVE\nmaster_offset {numbers}")] {
                for reading in [pmc(&text), chronyc(&text)] {
                    prop_assert!(reading.error.is_none_or(|error| error >= Nanos::ZERO));
                    prop_assert!(reading.fault.is_none_or(|fault| fault.len() < 200 && !fault.contains('\n')));
                }
            }
        }
    }
}
