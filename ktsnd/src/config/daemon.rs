// SPDX-License-Identifier: Apache-2.0
//! `[daemon]`: what holds for the whole daemon.
//!
//! In: untrusted text. Out: [`Daemon`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ktsn_time::Nanos;
use serde::Deserialize;

use super::ConfigError;
use super::values::{Checked, bounded, duration, word};
use crate::limits;

/// Most CPUs that `receive_spin_max` may name.
const SPIN_MAX: f64 = 64.0;

ktsn_model::words! {
    /// The source that judges whether the clock is good.
    #[derive(Default)]
    pub enum ClockSource {
        /// The kernel's clock discipline (adjtimex).
        #[default]
        Kernel = "kernel",
        /// ptp4l, asked by `pmc`.
        Ptp4l = "ptp4l",
        /// chronyd, asked by `chronyc`.
        Chrony = "chrony",
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDaemon {
    pub run_dir: Option<String>,
    pub cache_dir: Option<String>,
    pub mlock: Option<bool>,
    pub clock_source: Option<String>,
    pub clock_error_max: Option<String>,
    pub memory_max: Option<u64>,
    pub receive_spin_max: Option<f64>,
    pub metrics_listen: Option<String>,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Sockets, state and lock; `None` = `--run-dir`, `KTSN_RUN_DIR` or `/run/ktsn`.
    pub run_dir: Option<PathBuf>,
    /// What is learnt of this machine is kept there; `None` = `KTSN_CACHE_DIR` or `/var/lib/ktsn`.
    pub cache_dir: Option<PathBuf>,
    /// Whether memory is locked.
    pub mlock: bool,
    /// Who says whether the clock is good.
    pub clock_source: ClockSource,
    /// The greatest error with which it is good; `None` = whatever its source admits.
    pub clock_error_max: Option<Nanos>,
    /// Octets of memory that all clients together have at most.
    pub memory_max: u64,
    /// Where metrics are served; `None` = nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// CPUs that all programs together may spin for expected arrivals, in thousandths of a CPU.
    pub receive_spin_max_permille: u32,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            run_dir: None,
            cache_dir: None,
            mlock: true,
            memory_max: limits::CLIENTS_MEMORY_MAX,
            receive_spin_max_permille: limits::RECEIVE_SPIN_MAX,
            clock_source: ClockSource::default(),
            clock_error_max: None,
            metrics_listen: None,
        }
    }
}

impl Daemon {
    pub(super) fn check(raw: &RawDaemon) -> Checked<Self> {
        let defaults = Self::default();
        let error_max =
            |text: &String| duration("daemon.clock_error_max", text, Nanos::new(1), Nanos::from_seconds(10));
        let memory = &(16 << 20..=1 << 40);
        Ok(Self {
            run_dir: raw.run_dir.as_ref().map(PathBuf::from),
            cache_dir: raw.cache_dir.as_ref().map(PathBuf::from),
            mlock: raw.mlock.unwrap_or(defaults.mlock),
            memory_max: bounded("daemon.memory_max", raw.memory_max, defaults.memory_max, memory)?,
            receive_spin_max_permille: spin_max_permille("daemon.receive_spin_max", raw.receive_spin_max)?,
            clock_source: word("daemon.clock_source", raw.clock_source.as_deref())?,
            clock_error_max: raw.clock_error_max.as_ref().map(error_max).transpose()?,
            metrics_listen: listen("daemon.metrics_listen", raw.metrics_listen.as_deref())?,
        })
    }
}

/// `receive_spin_max`: CPUs that all programs together may spin, in parts per thousand of one.
fn spin_max_permille(field: &str, value: Option<f64>) -> Checked<u32> {
    let Some(value) = value else { return Ok(limits::RECEIVE_SPIN_MAX) };
    if !(0.0..=SPIN_MAX).contains(&value) {
        return Err(ConfigError::value(field, value, format!("0 to {SPIN_MAX} CPUs, for example 0.2")));
    }
    Ok((value * 1000.0).round() as u32)
}

/// `metrics_listen`: an address with a port, or a port alone: then it is one of 127.0.0.1. Another address than loopback has to be written down.
fn listen(field: &str, text: Option<&str>) -> Checked<Option<SocketAddr>> {
    let Some(text) = text else { return Ok(None) };
    let port = text.strip_prefix(':').unwrap_or(text).parse().ok();
    let address =
        port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_else(|| text.parse().ok());
    let expected = "a port such as 9190, which is one of 127.0.0.1, or an address and a port such as 192.0.2.1:9190 or [::1]:9190";
    let address = address.filter(|address| address.port() > 0);
    address.map(Some).ok_or_else(|| ConfigError::value(field, text, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_loopback() {
        for (text, address) in [
            ("9190", "127.0.0.1:9190"),
            (":9190", "127.0.0.1:9190"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:65535", "[::1]:65535"),
            ("192.0.2.1:80", "192.0.2.1:80"),
        ] {
            assert_eq!(listen("f", Some(text)), Ok(Some(address.parse().unwrap())), "{text}");
        }
        assert_eq!(listen("f", None), Ok(None));
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_field() {
        for text in
            ["", "0", "65536", "localhost:9190", "127.0.0.1", "127.0.0.1:0", "::1:9190x", "*:9190", " 9190"]
        {
            let fault = listen("daemon.metrics_listen", Some(text)).unwrap_err().to_string();
            let begin = format!("daemon.metrics_listen: {text:?}: expected a port");
            assert!(fault.starts_with(&begin), "{fault}");
        }
    }
}
