// SPDX-License-Identifier: Apache-2.0
//! What the kernel's own tracers say about a machine: `rtla osnoise`, `rtla timerlat`, `hwlatdetect`. In: what these programs write. Out:
//! their figures for each CPU. A text that is not understood is an error, never a zero.

use crate::results::Skip;
use serde::{Deserialize, Serialize};

/// A tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Noise of the operating system in a busy loop (`rtla osnoise top`).
    Osnoise,
    /// Latency of a timer's interrupt and of its thread (`rtla timerlat top`).
    Timerlat,
    /// Latencies of the hardware and its firmware (`hwlatdetect`).
    Hwlat,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hwlat, Self::Osnoise, Self::Timerlat];

    /// The name of the kernel's tracer.
    #[must_use]
    pub const fn tracer(self) -> &'static str {
        match self {
            Self::Osnoise => "osnoise",
            Self::Timerlat => "timerlat",
            Self::Hwlat => "hwlat",
        }
    }

    /// Reads what the tracer's program wrote.
    ///
    /// # Errors
    /// What is missing or not understood.
    pub fn read(self, text: &str) -> Result<Vec<Traced>, String> {
        match self {
            Self::Osnoise => table(text, 12, |cells| {
                Some(vec![figure("max_noise_ns", cells[5])?, figure("max_single_noise_ns", cells[6])?])
            }),
            Self::Timerlat => table(text, 10, |cells| {
                Some(vec![
                    figure("max_irq_latency_ns", cells[5])?,
                    figure("max_thread_latency_ns", cells[9])?,
                ])
            }),
            Self::Hwlat => hwlat(text),
        }
    }
}

/// A tracer's result, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracer {
    /// Which one.
    pub kind: Kind,
    /// Why it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<Skip>,
    /// How long it ran.
    pub measured_ns: u64,
    /// Its figures.
    #[serde(default)]
    pub traced: Vec<Traced>,
}

/// A tracer's figures for one CPU, or for the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The CPU; absent: all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Name and nanoseconds.
    pub figures: Vec<(String, u64)>,
}

/// A figure that a tracer gives in microseconds.
fn figure(name: &str, micros: &str) -> Option<(String, u64)> {
    let nanos = if micros == "-" { 0 } else { micros.parse::<u64>().ok()?.checked_mul(1000)? };
    Some((name.to_owned(), nanos))
}

/// The rows of rtla's last table: `CPU #N …`, one for each CPU, with so many cells.
fn table(
    text: &str,
    count: usize,
    figures: impl Fn(&[&str]) -> Option<Vec<(String, u64)>>,
) -> Result<Vec<Traced>, String> {
    // The screen is drawn again and again: the last head begins what holds.
    let head = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("CPU ")).last();
    let from = head.ok_or("no table with a column CPU")?.0 + 1;
    let mut traced = Vec::new();
    for line in text.lines().skip(from) {
        let cells: Vec<&str> = line.split_whitespace().filter(|word| *word != "|").collect();
        if cells.is_empty() {
            continue;
        }
        let cpu = cells[0].parse::<u32>();
        let (Ok(cpu), true) = (cpu, cells.get(1).is_some_and(|word| word.starts_with('#'))) else { break };
        if cells.len() != count {
            return Err(format!("a row of {} cells, expected {count}: {line:?}", cells.len()));
        }
        let figures = figures(&cells).ok_or_else(|| format!("a cell that is no number: {line:?}"))?;
        traced.push(Traced { cpu: Some(cpu), figures });
    }
    if traced.is_empty() { Err("a table without a CPU".to_owned()) } else { Ok(traced) }
}

fn hwlat(text: &str) -> Result<Vec<Traced>, String> {
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .ok_or_else(|| format!("no line {name:?}"))
    };
    let most = match value("Max Latency")? {
        "Below threshold" => 0,
        micros => {
            let digits = micros.trim_end_matches("us");
            digits.parse::<u64>().map_err(|_| format!("a latency {micros:?}"))? * 1000
        }
    };
    let count = value("Samples exceeding threshold")?;
    let count = count.parse::<u64>().map_err(|_| format!("a number of samples {count:?}"))?;
    let figures = vec![("max_latency_ns".to_owned(), most), ("samples_above_threshold".to_owned(), count)];
    Ok(vec![Traced { cpu: None, figures }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(traced: &[Traced]) -> Vec<(Option<u32>, Vec<u64>)> {
        traced.iter().map(|one| (one.cpu, one.figures.iter().map(|figure| figure.1).collect())).collect()
    }

    /// The tables as rtla 6.1 draws them, twice over each other.
    #[test]
    fn tables_of_rtla_are_read() {
        let text = "                                          Operating System Noise\n\
            duration:   0 00:00:01 | time is in us\n\
            CPU Period       Runtime        Noise  % CPU Aval   Max Noise   Max Single          HW          NMI          IRQ      Softirq       Thread\n  \
              0 #1          1000000          117    99.98830          27           14            0            0          1022           45            6\n";
        let later = text.replace("27           14", "93           61")
            + "  1 #1          1000000            8    99.99920           5            4            0            0          1003            2            0\n";
        let found = Kind::Osnoise.read(&format!("{text}\x1b[H\n{later}\n")).unwrap();
        assert_eq!(figures(&found), [(Some(0), vec![93_000, 61_000]), (Some(1), vec![5_000, 4_000])]);
        let text = "                                     Timer Latency\n  \
              0 00:00:05   |          IRQ Timer Latency (us)        |         Thread Timer Latency (us)\n\
            CPU COUNT      |      cur       min       avg       max |      cur       min       avg       max\n  \
              0 #4996      |        1         0         1         9 |        8         3         7        26\n  \
              1 #0         |        -         -         -         - |        -         -         -         -\n";
        let found = Kind::Timerlat.read(text).unwrap();
        assert_eq!(figures(&found), [(Some(0), vec![9_000, 26_000]), (Some(1), vec![0, 0])]);
        for (text, word) in [
            ("osnoise: no tracer\n", "no table"),
            ("CPU COUNT\n", "without a CPU"),
            ("CPU COUNT\n  0 #1 | 1 2\n", "a row of 4"),
            ("CPU COUNT\n  0 #1 | 1 2 3 x | 1 2 3 4\n", "no number"),
        ] {
            let error = Kind::Timerlat.read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn hwlatdetect_is_read() {
        let quiet = "hwlatdetect:  test duration 10 seconds\n   detector: tracer\n   parameters:\n        Latency threshold: 10us\n\
            \x20       Sample window:     1000000us\n\nStarting test\ntest finished\nMax Latency: Below threshold\nSamples recorded: 0\n\
            Samples exceeding threshold: 0\n";
        assert_eq!(figures(&Kind::Hwlat.read(quiet).unwrap()), [(None, vec![0, 0])]);
        let loud = quiet.replace("Below threshold", "179us").replace("threshold: 0\n", "threshold: 3\n");
        assert_eq!(figures(&Kind::Hwlat.read(&loud).unwrap()), [(None, vec![179_000, 3])]);
        assert!(Kind::Hwlat.read("test finished\n").unwrap_err().contains("Max Latency"));
        let odd = quiet.replace("Below threshold", "soon");
        assert!(Kind::Hwlat.read(&odd).unwrap_err().contains("soon"));
    }
}
