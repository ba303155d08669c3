// SPDX-License-Identifier: Apache-2.0
//! The paths of the experiment `receive`: a way from talker to listener, and how the listener waits. In: a name. Out: a
//! [`Path`].

use crate::container::Path as Way;
use std::fmt;
use std::str::FromStr;

/// How the listener is awake when a frame comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receiver {
    /// The kernel wakes it.
    Kernel,
    /// libktsn's expected-arrival receive.
    Expect,
    /// It never sleeps.
    Spin,
}

/// A path of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The way to the listener.
    pub way: Way,
    /// How the listener waits.
    pub receiver: Receiver,
}

const fn path(way: Way, receiver: Receiver) -> Path {
    Path { way, receiver }
}

impl Path {
    /// All paths, in the order of tables.
    pub const ALL: [Self; 11] = [
        Self::FLANNEL,
        path(Way::Flannel, Receiver::Spin),
        Self::FLANNEL_EXPECT,
        path(Way::Bare, Receiver::Kernel),
        path(Way::Bare, Receiver::Spin),
        path(Way::Ktsn, Receiver::Kernel),
        Self::KTSN_SPIN,
        Self::KTSN_EXPECT,
        Self::SHORT,
        Self::SHORT_SPIN,
        Self::SHORT_EXPECT,
    ];
    /// Flannel's path, and the kernel wakes the listener.
    pub const FLANNEL: Self = path(Way::Flannel, Receiver::Kernel);
    /// Flannel's path to a listener that expects its frames.
    pub const FLANNEL_EXPECT: Self = path(Way::Flannel, Receiver::Expect);
    /// KTSN to a listener that spins; the kernel's path into the pod.
    pub const KTSN_SPIN: Self = path(Way::Ktsn, Receiver::Spin);
    /// KTSN to a listener that expects its frames; the kernel's path into the pod.
    pub const KTSN_EXPECT: Self = path(Way::Ktsn, Receiver::Expect);
    /// KTSN with the ingress fast path, and the kernel wakes the listener.
    pub const SHORT: Self = path(Way::KtsnShort, Receiver::Kernel);
    /// KTSN with the ingress fast path to a listener that spins.
    pub const SHORT_SPIN: Self = path(Way::KtsnShort, Receiver::Spin);
    /// KTSN with the ingress fast path to a listener that expects its frames.
    pub const SHORT_EXPECT: Self = path(Way::KtsnShort, Receiver::Expect);

    /// Whether a ktsnd of the receiving node takes part.
    #[must_use]
    pub fn has_far_daemon(self) -> bool {
        self.way == Way::KtsnShort || self.receiver == Receiver::Expect
    }

    /// Whether KTSN takes part in the path of this name.
    pub(crate) fn is_ours(name: &str) -> bool {
        name.parse().is_ok_and(|path: Self| path.way.is_served() || path.receiver == Receiver::Expect)
    }

    /// The same way with another receiver.
    #[must_use]
    pub const fn with(self, receiver: Receiver) -> Self {
        Self { way: self.way, receiver }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.way.word())?;
        f.write_str(match self.receiver {
            Receiver::Kernel => "",
            Receiver::Expect => "-expect",
            Receiver::Spin => "-spin-listener",
        })
    }
}

/// No such path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no path; expected {known}", known = Path::ALL.map(|path| path.to_string()).join(", "))]
pub struct UnknownPath(String);

impl FromStr for Path {
    type Err = UnknownPath;

    fn from_str(text: &str) -> Result<Self, UnknownPath> {
        Self::ALL
            .into_iter()
            .find(|path| path.to_string() == text)
            .ok_or_else(|| UnknownPath(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_results() {
        for path in Path::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
        assert_eq!(Path::SHORT_EXPECT.to_string(), "ktsn-short-expect");
        assert_eq!(Path::FLANNEL.with(Receiver::Spin).to_string(), "flannel-spin-listener");
        assert!("wifi".parse::<Path>().unwrap_err().to_string().contains("ktsn-expect"));
        assert!(Path::FLANNEL_EXPECT.has_far_daemon() && !Path::FLANNEL.has_far_daemon());
    }
}
