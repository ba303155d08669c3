// SPDX-License-Identifier: Apache-2.0
//! Checks of single values, for every part of the configuration.
//!
//! In: a field's path and its text or number. Out: the value, or a [`ConfigError`] that names the field, the value and what was
//! expected.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ktsn_model::{IpPrefix, UnknownWord};
use ktsn_time::Nanos;

use super::ConfigError;

/// A checked value, or which field is wrong and why.
pub(super) type Checked<T> = Result<T, ConfigError>;

/// The text of a field that must be there and not empty.
pub(super) fn required<'a>(field: &str, value: Option<&'a str>, expected: &str) -> Checked<&'a str> {
    value.filter(|v| !v.is_empty()).ok_or_else(|| ConfigError::missing(field, expected))
}

/// The name of a network device, as the kernel takes it.
pub(super) fn device_name(field: &str, value: Option<&str>) -> Checked<String> {
    let name = required(field, value, "the name of a network device")?;
    let fits = name.len() < 16
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
    if fits {
        Ok(name.to_owned())
    } else {
        Err(ConfigError::value(field, name, "a device name of 1 to 15 characters without '/' and ':'"))
    }
}

/// An IP address.
pub(super) fn address(field: &str, value: Option<&str>) -> Checked<IpAddr> {
    let text = required(field, value, "an IP address")?;
    text.parse().map_err(|_| ConfigError::value(field, text, "an IP address"))
}

/// An IP prefix.
pub(super) fn prefix(field: &str, text: &str) -> Checked<IpPrefix> {
    text.parse()
        .map_err(|e: ktsn_model::PrefixError| ConfigError::value(field, text, format!("a prefix: {e}")))
}

/// One of the words of `T`, where the field is there.
pub(super) fn choice<T: FromStr<Err = UnknownWord>>(field: &str, text: Option<&str>) -> Checked<Option<T>> {
    let read = |text: &str| {
        text.parse().map_err(|UnknownWord(words)| ConfigError::value(field, text, words.to_string()))
    };
    text.map(read).transpose()
}

/// One of the words of `T`; the default where the field is absent.
pub(super) fn word<T: FromStr<Err = UnknownWord> + Default>(field: &str, text: Option<&str>) -> Checked<T> {
    Ok(choice(field, text)?.unwrap_or_default())
}

/// A time with its unit; `None`: it is none, or not from `smallest` to `largest`.
pub(super) fn time(text: &str, smallest: Nanos, largest: Nanos) -> Option<Nanos> {
    let nanos = i64::try_from(humantime::parse_duration(text).ok()?.as_nanos()).ok().map(Nanos::new);
    nanos.filter(|nanos| (smallest..=largest).contains(nanos))
}

/// A time with its unit, from `smallest` to `largest`.
pub(super) fn duration(field: &str, text: &str, smallest: Nanos, largest: Nanos) -> Checked<Nanos> {
    time(text, smallest, largest).ok_or_else(|| {
        let expected = format!("a time between {smallest} and {largest} with its unit, such as 300us or 1ms");
        ConfigError::value(field, text, expected)
    })
}

/// A time from 1 ns to `largest`; `default` where the field is absent.
pub(super) fn time_or(field: &str, text: Option<&str>, default: Nanos, largest: Nanos) -> Checked<Nanos> {
    text.map_or(Ok(default), |text| duration(field, text, Nanos::new(1), largest))
}

/// A time as [`duration`] reads it.
pub(super) fn span(span: Nanos) -> String {
    humantime::format_duration(std::time::Duration::from_nanos(span.get().unsigned_abs())).to_string()
}

/// A number within `range`; `default` where the field is absent.
pub(super) fn bounded<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    default: T,
    range: &RangeInclusive<T>,
) -> Checked<T> {
    match value {
        None => Ok(default),
        Some(v) if range.contains(&v) => Ok(v),
        Some(v) => Err(ConfigError::value(field, v, format!("{} to {}", range.start(), range.end()))),
    }
}
