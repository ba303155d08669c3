// SPDX-License-Identifier: Apache-2.0
//! What stands before `taprio`: options of tc, `qdisc`, a verb, and where the queueing discipline is to be.
//!
//! In: the words behind `tc`. Out: where they say it is; the words behind `taprio` are left. As tc does, a word is looked at alone.

use std::borrow::Cow;

use super::numbers::{signed, unsigned};
use super::reader::Reader;
use super::{DEVICE_EXPECTED, HANDLE_EXPECTED, PARENT_EXPECTED, is_device, normal_handle};
use crate::fault::Position;

/// tc's options without a value; each but the last may be shortened.
const PLAIN: [&str; 18] = [
    "-stats",
    "-statistics",
    "-details",
    "-raw",
    "-pretty",
    "-graph",
    "-iec",
    "-force",
    "-names",
    "-nm",
    "-timestamp",
    "-tshort",
    "-json",
    "-oneline",
    "-brief",
    "-color",
    "-Numeric",
    "-echo",
];
/// Those with one; tc compares -netns and -conf before -names and -color.
const WITH_VALUE: [&str; 3] = ["-netns", "-conf", "-cf"];
const VERBS: [&str; 4] = ["add", "change", "replace", "link"];
const PLACES: &str = "dev, parent, root, handle, stab, estimator, taprio";

/// The table of stab: link layers that tc knows.
const LINK_LAYERS: [&str; 3] = ["ethernet", "atm", "adsl"];

impl Reader<'_> {
    /// `[OPTIONS] qdisc VERB … taprio`; false where it is refused before the options of taprio.
    pub(super) fn place(&mut self) -> bool {
        self.tc_options();
        let is_object = |word: &str| !word.is_empty() && "qdisc".starts_with(word);
        let is_verb = |word: &str| !word.is_empty() && VERBS.iter().any(|verb| verb.starts_with(word));
        if !self.is_word("qdisc", is_object) {
            return false;
        }
        let verb = self.peek_text().unwrap_or_default().into_owned();
        if !self.is_word("add, replace, change or link", is_verb) {
            return false;
        }
        if !"add".starts_with(&verb) && !"replace".starts_with(&verb) {
            let at = self.last;
            self.remark(at, format!("{verb}: Linux takes it only where a taprio is there already"));
        }
        while let Some(word) = self.take() {
            match word.text.as_ref() {
                "taprio" => return self.place_is_whole(),
                "root" => {
                    self.first("parent", word.at);
                    self.taprio.parent = "root".to_owned();
                }
                "dev" => {
                    self.first("dev", word.at);
                    if let Some(name) =
                        self.checked("dev", DEVICE_EXPECTED, |text| is_device(text).then(|| text.to_owned()))
                    {
                        self.taprio.device = Some(name);
                    }
                }
                "handle" => {
                    self.first("handle", word.at);
                    self.taprio.handle = self.checked("handle", HANDLE_EXPECTED, normal_handle).flatten();
                }
                "parent" => {
                    self.first("parent", word.at);
                    self.checked("parent", PARENT_EXPECTED, |text| {
                        let is_root = text == "root" || text.eq_ignore_ascii_case("ffff:ffff");
                        is_root.then_some(())
                    });
                }
                "estimator" => self.estimator(word.at),
                "stab" => self.stab(word.at),
                other => {
                    let (at, what) = (word.at, other.to_owned());
                    self.fault(
                        at,
                        "",
                        format!("{what} where the kind of the queueing discipline stands"),
                        format!("one of {PLACES}"),
                    );
                    return false;
                }
            }
        }
        let at = self.last;
        self.fault(at, "", "the command's end", "taprio");
        false
    }

    fn tc_options(&mut self) {
        while let Some(word) = self.peek_text().filter(|word| word.starts_with('-')) {
            let word = word.into_owned();
            let at = self.take().map_or(Position::START, |word| word.at);
            let is_of =
                |option: &&str| option.starts_with(word.as_str()) && (*option != "-echo" || word == "-echo");
            let is_plain = PLAIN.iter().any(is_of);
            let valued = WITH_VALUE.iter().any(is_of) && word != "-";
            if valued {
                let Some(value) = self.take() else { return };
                self.remark(at, format!("{word} {}: where tc would look is not looked at", value.text));
            } else if !is_plain && !word.starts_with("-color=") {
                self.fault(at, "", word, format!("an option of tc: {}", PLAIN.join(", ")));
            }
        }
    }

    fn is_word(&mut self, expected: &str, is: impl Fn(&str) -> bool) -> bool {
        let Some(word) = self.take() else {
            let at = self.last;
            self.fault(at, "", "the command's end", expected);
            return false;
        };
        let fits = is(&word.text);
        if !fits {
            self.fault(
                word.at,
                "",
                &word.text,
                format!("{expected} (tc qdisc replace dev DEV parent root taprio …)"),
            );
        }
        fits
    }

    /// Linux attaches taprio to the root of a device, and nowhere else.
    fn place_is_whole(&mut self) -> bool {
        let at = self.last;
        for (option, expected) in [("dev", DEVICE_EXPECTED), ("parent", PARENT_EXPECTED)] {
            if !self.is_seen(option) {
                self.fault(at, option, "nothing", expected);
            }
        }
        true
    }

    /// `estimator INTERVAL TIME_CONSTANT`: of the kernel's rate estimator, which KTSN has not.
    fn estimator(&mut self, at: Position) {
        const EXPECTED: &str = "a time such as 1sec, 250ms";
        let times = [0; 2].map(|_| self.checked("estimator", EXPECTED, micros));
        let [Some(interval), Some(constant)] = times else { return };
        if is_estimator(interval, constant) {
            self.remark(at, "estimator: the kernel's rate estimator is not kept".to_owned());
        } else {
            let expected = "an interval of at most 8 s, and a time constant of some of it";
            self.fault(at, "estimator", format!("{interval} µs {constant} µs"), expected);
        }
    }

    fn stab(&mut self, at: Position) {
        let first = self.next;
        let mut words: Vec<Cow<'_, str>> = Vec::new();
        while let Some(option) = self.peek_text().filter(|word| is_stab_option(word)).map(Cow::into_owned) {
            self.take();
            let Some(value) = self.take() else {
                let at = self.last;
                return self.fault(at, "stab", "the command's end", format!("a value of {option}"));
            };
            words.extend([option.into(), value.text.into_owned().into()]);
        }
        match check_stab(&words) {
            Ok(text) => {
                self.first("stab", at);
                self.taprio.stab = Some(text);
            }
            Err(expected) => {
                let found = if first == self.next { "nothing".to_owned() } else { words.join(" ") };
                self.fault(at, "stab", found, expected);
            }
        }
    }
}

/// A time as tc reads it: microseconds, unless a unit stands behind the number.
fn micros(text: &str) -> Option<f64> {
    let end = text.find(|sign: char| !sign.is_ascii_digit() && sign != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|number| number.is_finite())?;
    let factor = match &text[end..] {
        "" | "us" | "usec" | "usecs" => 1.0,
        "ms" | "msec" | "msecs" => 1e3,
        "s" | "sec" | "secs" => 1e6,
        _ => return None,
    };
    Some((number * factor).floor())
}

/// Whether the kernel's estimator has such an interval and time constant, both in µs: the weight of a sample is a power of two.
fn is_estimator(interval: f64, constant: f64) -> bool {
    let fits = |power: i32| interval / -(1.0 - 0.5_f64.powi(power)).ln() <= constant;
    let powers = (1..32).take_while(|power| fits(*power)).count();
    interval <= 8e6 && (1..31).contains(&powers)
}

pub(super) fn is_stab_option(word: &str) -> bool {
    ["mtu", "mpu", "overhead", "tsize", "linklayer"].contains(&word)
}

/// The size table's options in their own form, or what was expected.
pub(crate) fn check_stab(words: &[impl AsRef<str>]) -> Result<String, &'static str> {
    const EXPECTED: &str =
        "overhead OCTETS, mpu OCTETS or linklayer ethernet|atm|adsl, each once, beside mtu and tsize";
    let (mut text, mut seen, mut has_effect) = (Vec::new(), Vec::new(), false);
    for pair in words.chunks(2) {
        let [option, value] = pair else { return Err(EXPECTED) };
        let (option, value) = (option.as_ref(), value.as_ref());
        let octets = match option {
            "linklayer" if LINK_LAYERS.contains(&value) => 1,
            "overhead" => signed(value).filter(|value| i32::try_from(*value).is_ok()).ok_or(EXPECTED)?,
            "mtu" | "mpu" | "tsize" => {
                unsigned(value, 10, u64::from(u32::MAX)).map(|value| value as i64).ok_or(EXPECTED)?
            }
            _ => return Err(EXPECTED),
        };
        if seen.contains(&option) {
            return Err(EXPECTED);
        }
        seen.push(option);
        has_effect |= octets != 0 && matches!(option, "overhead" | "mpu" | "linklayer");
        let value = if option == "linklayer" { value.to_owned() } else { octets.to_string() };
        text.push(format!("{option} {value}"));
    }
    if has_effect { Ok(text.join(" ")) } else { Err(EXPECTED) }
}

impl Reader<'_> {
    /// A value that `read` understands, or a fault.
    pub(super) fn checked<T>(
        &mut self,
        path: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let word = self.value(path, expected)?;
        let value = read(&word.text);
        if value.is_none() {
            self.fault(word.at, path, &word.text, expected);
        }
        value
    }

    /// Notes an option; tc refuses some of them twice.
    pub(super) fn first(&mut self, option: &'static str, at: Position) {
        if self.is_seen(option) {
            self.fault(at, option, "the option again", "each option once");
        }
        self.seen.push((option, at));
    }
}
