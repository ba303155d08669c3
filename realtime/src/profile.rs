// SPDX-License-Identifier: Apache-2.0
//! The test profiles. In: a number of 1 to 8. Out: what the load is, where it runs, and whether the probe has a CPU of its own.
//!
//! 1 to 6 are the paper's (Table 2 and section 5.2). 7 and 8 are what it left for later: neighbours with interrupts of the network, and
//! with writes to a disk.

use serde::{Deserialize, Serialize};

/// A test profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Profile(u8);

/// What disturbs the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nothing.
    None,
    /// Workers of `stress` inside the system under test.
    Inside,
    /// Workers of `stress` in two neighbours.
    Neighbours,
    /// Traffic between two neighbours.
    Network,
    /// Writes to a disk by two neighbours.
    Disk,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 8] = [Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7), Self(8)];
    /// The profile that isolation is held against: load inside, the probe on a CPU of its own.
    pub const ALONE: Self = Self(4);

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// What disturbs the probe.
    #[must_use]
    pub const fn load(self) -> Load {
        match self.0 {
            3 | 4 => Load::Inside,
            5 | 6 => Load::Neighbours,
            7 => Load::Network,
            8 => Load::Disk,
            _ => Load::None,
        }
    }

    /// Whether the probe stays on one CPU, and the load on the others.
    #[must_use]
    pub const fn is_pinned(self) -> bool {
        !matches!(self.0, 1 | 3 | 5)
    }

    /// Whether neighbours run.
    #[must_use]
    pub const fn has_neighbours(self) -> bool {
        self.0 >= 5
    }

    /// The profile in words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self.0 {
            1 => "alone, any CPU",
            2 => "alone, one CPU",
            3 => "load inside, any CPU",
            4 => "load inside, on the other CPUs",
            5 => "two loaded neighbours, any CPU",
            6 => "two loaded neighbours, on the other CPUs",
            7 => "two neighbours with network traffic, on the other CPUs",
            _ => "two neighbours that write to a disk, on the other CPUs",
        }
    }
}

impl TryFrom<u8> for Profile {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        if (1..=8).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("profile {number}: expected 1 to 8"))
        }
    }
}

impl From<Profile> for u8 {
    fn from(profile: Profile) -> Self {
        profile.0
    }
}

impl std::str::FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: u8 =
            text.parse().map_err(|_| format!("profile `{text}`: expected a number of 1 to 8"))?;
        Self::try_from(number)
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the paper's Table 2: load inside or in neighbours, affinity.
    #[test]
    fn profiles_are_those_of_the_paper() {
        let rows: Vec<(Load, bool)> =
            Profile::ALL.iter().map(|profile| (profile.load(), profile.is_pinned())).collect();
        let expected = [
            (Load::None, false),
            (Load::None, true),
            (Load::Inside, false),
            (Load::Inside, true),
            (Load::Neighbours, false),
            (Load::Neighbours, true),
            (Load::Network, true),
            (Load::Disk, true),
        ];
        assert_eq!(rows, expected);
        assert_eq!("5".parse(), Ok(Profile(5)));
        assert!("9".parse::<Profile>().unwrap_err().contains("1 to 8"));
        assert!("x".parse::<Profile>().unwrap_err().contains("`x`"));
    }
}
