// SPDX-License-Identifier: Apache-2.0
//! The paths by name, and what each one is: who keeps the time, where it starts and ends.

use std::fmt;
use std::str::FromStr;

/// A path of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Host to host; the talker sleeps.
    Bare,
    /// Host to host; the talker spins.
    BareSpin,
    /// Pod to pod on Flannel's path; the talker sleeps.
    Flannel,
    /// Pod to pod on Flannel's path; the talker spins.
    FlannelSpin,
    /// Pod to pod on Flannel's path; the talker is an ordinary process.
    FlannelOther,
    /// Pod to pod; SO_TXTIME, libktsn, ktsnd.
    Ktsn,
    /// Pod to pod; SO_TXTIME without any library, kernel capture, ktsnd.
    KtsnCapture,
    /// The path `ktsn`, and a ktsnd of the receiving node takes the frames straight into the pod.
    KtsnShort,
}

impl Path {
    /// The paths that are measured unless some are named, in the order of tables.
    pub const ALL: [Self; 6] =
        [Self::Bare, Self::BareSpin, Self::Flannel, Self::FlannelSpin, Self::FlannelOther, Self::Ktsn];

    /// The paths of the experiment `overlay`, in the order of its tables.
    pub const OVERLAY: [Self; 7] = [
        Self::Flannel,
        Self::FlannelSpin,
        Self::FlannelOther,
        Self::Ktsn,
        Self::KtsnShort,
        Self::Bare,
        Self::BareSpin,
    ];

    /// All paths.
    pub const KNOWN: [Self; 8] = [
        Self::Bare,
        Self::BareSpin,
        Self::Flannel,
        Self::FlannelSpin,
        Self::FlannelOther,
        Self::Ktsn,
        Self::KtsnCapture,
        Self::KtsnShort,
    ];

    /// The name of the path in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::BareSpin => "bare-spin",
            Self::Flannel => "flannel",
            Self::FlannelSpin => "flannel-spin",
            Self::FlannelOther => "flannel-other",
            Self::Ktsn => "ktsn",
            Self::KtsnCapture => "ktsn-capture",
            Self::KtsnShort => "ktsn-short",
        }
    }

    /// Whether talker and listener are in pods.
    #[must_use]
    pub const fn in_pods(self) -> bool {
        !matches!(self, Self::Bare | Self::BareSpin)
    }

    /// Whether ktsnd sends its frames.
    #[must_use]
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Ktsn | Self::KtsnCapture | Self::KtsnShort)
    }

    /// Whether libktsn is preloaded into its talker.
    #[must_use]
    pub const fn is_preloaded(self) -> bool {
        matches!(self, Self::Ktsn | Self::KtsnShort)
    }

    /// How the receiving node takes its frames.
    pub(crate) const fn ingress(self) -> &'static str {
        if matches!(self, Self::KtsnShort) { "short" } else { "kernel" }
    }

    /// The talker's mode.
    pub(crate) const fn mode(self) -> &'static str {
        match self {
            Self::Bare | Self::Flannel | Self::FlannelOther => "sleep",
            Self::BareSpin | Self::FlannelSpin => "spin",
            Self::Ktsn | Self::KtsnCapture | Self::KtsnShort => "txtime",
        }
    }

    /// The talker's SCHED_FIFO priority. Under KTSN it is below the worker's on the same CPU: it sends its frame 300 µs
    /// ahead, while the worker sleeps, so CPU 0 and its listener are as idle as on every other path.
    pub(crate) const fn fifo(self) -> Option<u8> {
        match self {
            Self::FlannelOther => None,
            Self::Ktsn | Self::KtsnCapture | Self::KtsnShort => Some(40),
            _ => Some(50),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No such path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no path; expected bare, bare-spin, flannel, flannel-spin, flannel-other, ktsn, ktsn-capture or \
     ktsn-short"
)]
pub struct UnknownPath(String);

impl FromStr for Path {
    type Err = UnknownPath;

    fn from_str(text: &str) -> Result<Self, UnknownPath> {
        Self::KNOWN.into_iter().find(|path| path.name() == text).ok_or_else(|| UnknownPath(text.to_owned()))
    }
}
