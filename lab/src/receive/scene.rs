// SPDX-License-Identifier: Apache-2.0
//! The scenes of the experiment `receive`: what is sent, which listener hears it, what goes on beside it. In: a name. Out: a
//! [`Scene`] with its streams and its listener. In results a scene is the series' `load`.

use super::path::Path;
use crate::container::Load;
use ktsn_time::Nanos;

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// `ktsn listen`, waiting as this word of its `--wait` says.
    Compiled(&'static str),
    /// `listener.py`, waiting as this word of its `--wait` says.
    Python(&'static str),
}

ktsn_model::words! {
    /// What is sent, which listener hears it, what goes on beside it.
    pub enum Scene {
        /// 1 kHz, a blocking listener, nothing beside it.
        Idle = "idle",
        /// 1 kHz, a listener that waits in epoll.
        Epoll = "epoll",
        /// 1 kHz, a blocking listener in Python.
        Python = "python",
        /// 1 kHz, a Python listener that waits in epoll.
        PythonEpoll = "python-epoll",
        /// 100 Hz, a blocking listener.
        Slow = "100hz",
        /// Eight streams with different periods, a listener that waits for all of them in one epoll.
        EightStreams = "eight-streams",
        /// Random distances, on average 2 ms, a blocking listener.
        Poisson = "poisson",
        /// The scene [`Scene::Idle`], beside iperf3 between the same pods.
        Iperf3Udp = "iperf3-udp",
    }
}

/// Periods of the eight streams, in milliseconds. Their phases differ, so that no two frames have one instant.
const PERIODS_MS: [i64; 8] = [2, 3, 4, 5, 7, 8, 10, 20];

impl Scene {
    /// What it is, in words.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Idle => "idle: 1 kHz, `ktsn listen` blocking in recvmsg, nothing beside it".to_owned(),
            Self::Iperf3Udp => format!("idle, beside {}", Load::Iperf3Udp.describe()),
            Self::Epoll => "epoll: 1 kHz, `ktsn listen` in epoll_wait".to_owned(),
            Self::Python => "python: 1 kHz, a Python program blocking in recv".to_owned(),
            Self::PythonEpoll => "python-epoll: 1 kHz, a Python program in epoll_wait".to_owned(),
            Self::Slow => "100hz: 100 Hz, `ktsn listen` blocking in recvmsg".to_owned(),
            Self::EightStreams => format!(
                "eight-streams: eight talkers with periods of {PERIODS_MS:?} ms to eight ports, `ktsn listen` waiting for \
                 all of them in one epoll_wait; no jitter is given"
            ),
            Self::Poisson => {
                "poisson: distances of 100 µs and an exponentially distributed span, on average 2 ms, \
                              `ktsn listen` blocking in recvmsg"
                    .to_owned()
            }
        }
    }

    /// The paths that are measured in it unless some are named.
    #[must_use]
    pub fn paths(self) -> Vec<Path> {
        let kernel_and_expect = [Path::FLANNEL, Path::FLANNEL_EXPECT, Path::SHORT, Path::SHORT_EXPECT];
        match self {
            Self::Idle => Path::ALL.to_vec(),
            Self::Iperf3Udp => {
                let mut paths = kernel_and_expect.to_vec();
                paths.insert(2, Path::KTSN_EXPECT);
                paths
            }
            _ => kernel_and_expect.to_vec(),
        }
    }

    /// What goes through the same nodes meanwhile.
    pub(super) const fn load(self) -> Load {
        if matches!(self, Self::Iperf3Udp) { Load::Iperf3Udp } else { Load::Idle }
    }

    pub(super) const fn listener(self) -> Listener {
        match self {
            Self::Epoll | Self::EightStreams => Listener::Compiled("epoll"),
            Self::Python => Listener::Python("recv"),
            Self::PythonEpoll => Listener::Python("epoll"),
            _ => Listener::Compiled("recv"),
        }
    }

    /// The periods of its streams.
    pub(super) fn periods(self) -> Vec<Nanos> {
        match self {
            Self::EightStreams => PERIODS_MS.map(Nanos::from_millis).to_vec(),
            Self::Slow => vec![Nanos::from_millis(10)],
            Self::Poisson => vec![Nanos::from_millis(2)],
            _ => vec![Nanos::from_millis(1)],
        }
    }

    /// Whether the distances of its frames are random.
    pub(super) const fn is_random(self) -> bool {
        matches!(self, Self::Poisson)
    }

    /// How much longer than the others it lasts: rare frames need more time.
    pub(super) const fn times_longer(self) -> f64 {
        if matches!(self, Self::Slow) { 3.0 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_results() {
        for scene in Scene::ALL {
            assert_eq!(scene.word().parse(), Ok(scene));
            assert!(scene.describe().starts_with(scene.word()) || scene == Scene::Iperf3Udp);
            assert!(scene.paths().contains(&Path::FLANNEL));
        }
        assert!("flood".parse::<Scene>().unwrap_err().to_string().contains("eight-streams"));
    }
}
