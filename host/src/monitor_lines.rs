// SPDX-License-Identifier: Apache-2.0
//! What QEMU's monitor (QMP) says.
//!
//! In: octets of a monitor in pieces of any length; it is not trusted, because a guest may own its QEMU. Out: [`Message`]s, or how the monitor
//! broke the rules. At most one line is held. Uses nothing else of this crate, because `fuzz` compiles this file, too.

use serde_json::Value;
use std::fmt;

/// The longest answer of a command that is used here has less than a tenth.
pub const LINE_OCTETS_MAX: usize = 64 << 10;
/// Characters of a refusal that are kept.
pub const REFUSAL_MAX: usize = 300;
/// Events after which the guest's counter has another relation to the host's: it ran again after a pause or a migration, or woke.
const DISRUPTIONS: [&str; 2] = ["RESUME", "WAKEUP"];

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The monitor takes commands now. This is the first message.
    Greeting,
    /// A command was carried out.
    Answer(Value),
    /// A command was refused. One short line without control characters.
    Refusal(String),
    /// The guest's counter has another relation to the host's.
    Disruption,
    /// What is of no interest here.
    Other,
}

/// How a monitor broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A line without end.
    TooLong,
    /// A line that is no object of JSON.
    NoObject,
    /// Something else than a greeting came first.
    NoGreeting,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(out, "says more than {LINE_OCTETS_MAX} octets in a line"),
            Self::NoObject => out.write_str("says a line that is no object of JSON"),
            Self::NoGreeting => out.write_str("does not greet as QEMU's monitor (QMP) does"),
        }
    }
}

/// Reads messages from pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    is_greeted: bool,
}

impl Decoder {
    /// Whether the monitor has greeted.
    #[must_use]
    pub const fn is_greeted(&self) -> bool {
        self.is_greeted
    }

    /// Takes a piece, and passes on each message that is whole with it.
    ///
    /// # Errors
    /// [`Violation`]; nothing more can be read then.
    pub fn take(&mut self, octets: &[u8], hear: &mut dyn FnMut(Message)) -> Result<(), Violation> {
        for part in octets.split_inclusive(|&octet| octet == b'\n') {
            if self.line.len() + part.len() > LINE_OCTETS_MAX {
                return Err(Violation::TooLong);
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let message = self.message();
                self.line.clear();
                hear(message?);
            }
        }
        Ok(())
    }

    fn message(&mut self) -> Result<Message, Violation> {
        let said = serde_json::from_slice::<Value>(&self.line);
        let Ok(Value::Object(mut said)) = said else {
            return Err(if self.is_greeted { Violation::NoObject } else { Violation::NoGreeting });
        };
        if !self.is_greeted {
            self.is_greeted = said.contains_key("QMP");
            return if self.is_greeted { Ok(Message::Greeting) } else { Err(Violation::NoGreeting) };
        }
        if let Some(answer) = said.remove("return") {
            return Ok(Message::Answer(answer));
        }
        if let Some(error) = said.get("error") {
            let words = error["desc"].as_str().unwrap_or("without a reason");
            let words = words.chars().filter(|character| !character.is_control());
            return Ok(Message::Refusal(words.take(REFUSAL_MAX).collect()));
        }
        let is_disruption =
            said.get("event").and_then(Value::as_str).is_some_and(|event| DISRUPTIONS.contains(&event));
        Ok(if is_disruption { Message::Disruption } else { Message::Other })
    }
}
