// SPDX-License-Identifier: Apache-2.0
//! What the experiment `datapaths` says beside its series: the part of a run that is called stable, and each spike with its cause.
//!
//! In: latencies in the order of the frames, what the host counted. Out: [`stable::Part`], [`spikes::Cause`]. Both follow from rules
//! that were fixed before any result existed; nothing here reads a clock or a file.
//!
//! A document of this experiment has an [`Account`] as `parameters.datapaths`.

pub mod spikes;
pub mod stable;

use serde::{Deserialize, Serialize};
use spikes::Spike;
use std::collections::BTreeMap;

/// The parameter that holds the [`Account`].
pub const PARAMETER: &str = "datapaths";
/// The parameter that holds an [`Account`] of spikes alone, in documents of other experiments.
pub const SPIKES: &str = "spikes";
/// The longest measurement of the document that the experiment comes from, in seconds.
pub const PUBLISHED_SECONDS: f64 = 900.0;

/// What the experiment says beside its series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Seconds of traffic for a row, over [`PUBLISHED_SECONDS`].
    pub scale: f64,
    /// [`stable::RULE`].
    pub stable_rule: String,
    /// [`spikes::RULE`].
    pub spike_rule: String,
    /// What each path is, in a few words.
    pub paths: BTreeMap<String, String>,
    /// The frames of each run that its stable figures are of.
    pub stable_parts: Vec<StablePart>,
    /// How many spikes each row has, by cause.
    pub spikes: Vec<SpikeCount>,
    /// The greatest spikes of each run.
    pub greatest: Vec<Spike>,
}

impl Account {
    /// Leaves only what is said of these paths.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.paths.retain(|path, _| is_wanted(path));
        self.stable_parts.retain(|part| is_wanted(&part.path));
        self.spikes.retain(|spikes| is_wanted(&spikes.path));
        self.greatest.retain(|spike| is_wanted(&spike.path));
    }
}

/// The frames of a run that its stable figures are of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StablePart {
    /// The path.
    pub path: String,
    /// Direction and load.
    pub load: String,
    /// The round.
    pub round: u32,
    /// The first frame, from 0.
    pub first: u64,
    /// How many frames.
    pub frames: u64,
    /// Of how many.
    pub of: u64,
}

/// Spikes of a row with one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpikeCount {
    /// The path.
    pub path: String,
    /// Direction and load.
    pub load: String,
    /// [`spikes::Cause`] in a word.
    pub cause: String,
    /// Spikes over 500 µs.
    pub over_500us: u64,
    /// Spikes over 1,000 µs among them.
    pub over_1ms: u64,
}
