// SPDX-License-Identifier: Apache-2.0
//! The progress bar of experiments. In: what happens in the laboratory. Out: a bar on a terminal's standard error; what a log
//! needs (waiting, skips, void runs) stands there as lines, with and without a terminal. Never on standard output.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ktsn_lab::Event;

/// The lock that all measurements share.
pub(crate) const LOCK: &str = "out/.measure.lock";
const STYLE: &str = "{bar:30} {percent} %  {elapsed} of about {duration}  {msg}";

/// A bar; cleared on drop.
pub(crate) struct Progress {
    bar: ProgressBar,
    command: &'static str,
}

impl Progress {
    /// The bar of this command; it only turns until the number of runs is known.
    pub(crate) fn of(command: &'static str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, command }
    }

    /// Shows what happens.
    pub(crate) fn show(&self, event: Event<'_>) {
        match event {
            Event::WaitingForLock => self.say(&format!("waiting: another measurement holds {LOCK}")),
            Event::WaitingForQuiet { pressure, steal } => self.bar.set_message(format!(
                "waiting for a quiet machine (pressure {:.0} %, steal {:.0} %)",
                pressure.unwrap_or(0.0) * 100.0,
                steal * 100.0
            )),
            Event::Step(what) => self.bar.set_message(what.to_owned()),
            Event::Progress { done, all } => self.set_position(done, all),
            Event::Notice(text) => self.say(text),
            Event::Void(reason) => self.say(&format!("a run is void and is repeated: {reason}")),
        }
    }

    fn set_position(&self, done: u64, all: u64) {
        if self.bar.length() != Some(all)
            && let Ok(style) = ProgressStyle::with_template(STYLE)
        {
            self.bar.set_length(all);
            self.bar.set_style(style);
        }
        self.bar.set_position(done);
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{}: {line}", self.command));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_the_units_of_the_experiment_that_runs() {
        let progress = Progress::of("ktsn bench");
        let place = || (progress.bar.position(), progress.bar.length());
        assert_eq!(place(), (0, None));
        progress.show(Event::Progress { done: 2, all: 8 });
        progress.show(Event::Step("flannel"));
        assert_eq!((place(), progress.bar.message().as_str()), ((2, Some(8)), "flannel"));
        // The next part of the same experiment has other runs.
        progress.show(Event::Progress { done: 0, all: 3 });
        assert_eq!(place(), (0, Some(3)));
    }
}
