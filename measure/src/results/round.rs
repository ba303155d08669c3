// SPDX-License-Identifier: Apache-2.0
//! Which round a series is of. In and out: a number from 1, or the text `all`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One round, or all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Round {
    /// For each statistic the median of the rounds; counts summed.
    #[default]
    All,
    /// One round, from 1.
    Number(u32),
}

impl Serialize for Round {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Number(number) => serializer.serialize_u32(*number),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a round is a number from 1 or \"all\"")]
enum Written {
    Number(u32),
    Word(String),
}

impl<'de> Deserialize<'de> for Round {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) if number > 0 => Ok(Self::Number(number)),
            Written::Word(word) if word == "all" => Ok(Self::All),
            _ => Err(serde::de::Error::custom("a round is a number from 1 or \"all\"")),
        }
    }
}
