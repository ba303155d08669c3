// SPDX-License-Identifier: Apache-2.0
//! Closed lists of words, as configuration, command lines and results have them. In: an enum whose variants each have a
//! word. Out: the enum, its words both ways, and an error that names them all.

use core::fmt;

/// Words to choose from, in the order of their list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words(pub &'static [&'static str]);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, word) in self.0.iter().enumerate() {
            let left = self.0.len().saturating_sub(i);
            let before = if i == 0 {
                ""
            } else if left == 1 {
                " or "
            } else {
                ", "
            };
            write!(f, "{before}{word}")?;
        }
        Ok(())
    }
}

/// None of the words there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct UnknownWord(pub Words);

/// An enum of which each variant has one word.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// Every one, in order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];
            /// Every word, in order.
            pub const WORDS: [&'static str; [$($word),+].len()] = [$($word),+];

            /// Its word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> ::core::result::Result<Self, $crate::UnknownWord> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownWord($crate::Words(&Self::WORDS))),
                }
            }
        }
    };
}
