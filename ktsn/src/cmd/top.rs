// SPDX-License-Identifier: Apache-2.0
//! `ktsn top`: what a running ktsnd does right now.
//!
//! In: a run directory, an interval, keys. Out: what happened within each interval, for each port, attachment and stream: a
//! screen on a terminal, one line for an interval elsewhere, or JSON. Asks and changes nothing.

mod app;
mod draw;
mod rows;
#[cfg(test)]
mod samples;
mod strip;
mod terminal;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_proto::v1;
use ktsn_proto::v1::node_client::NodeClient;
use ktsn_time::Nanos;
use tonic::Streaming;
use tonic::transport::Channel;

use super::observer::span;
use crate::control::{self, ANSWER_MAX, ControlError};
use crate::output::{self, Written};
use crate::running;
use view::View;

/// ktsnd counts at most that often for one who watches.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  ktsn top
  ktsn top --interval 5s
  ktsn top --once
  ktsn top --json | jq '.attachments[] | {name, sent_per_second, late_per_second}'

On a terminal it is a screen with ports, attachments and streams; ? shows its keys. Elsewhere each interval is one line.
Exit status: 0 done, or the reader has closed the pipe; 1 no ktsnd answers there, or it ended; 2 wrong usage.";

/// Watch what ktsnd does: rates, late frames, drops, transmit error.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Directory of the ktsnd to ask [default: KTSN_RUN_DIR, else /run/ktsn, else that of the only `ktsn run --with-daemon`].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// How long an interval is.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Nanos,
    /// One interval as a table, then end.
    #[arg(long)]
    once: bool,
    /// One JSON object each interval, a line each.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Nanos, String> {
    match span(text)? {
        short if short < INTERVAL_MIN => Err("expected at least 100ms".to_owned()),
        interval => Ok(interval),
    }
}

/// How an interval is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Over the one before.
    Redrawn,
    Table,
    Line,
    Json,
}

impl TopArgs {
    fn shown(&self, is_terminal: bool) -> Shown {
        match (self.json, self.once, is_terminal) {
            (true, ..) => Shown::Json,
            (false, true, _) => Shown::Table,
            (false, false, true) => Shown::Redrawn,
            (false, false, false) => Shown::Line,
        }
    }
}

/// Asks and shows until interrupted.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    output::finish("top", show(args))
}

fn show(args: &TopArgs) -> Result<(), String> {
    let runtime = control::runtime().map_err(|error| error.to_string())?;
    let found =
        runtime.block_on(running::find(args.run_dir.as_deref())).map_err(|error| error.to_string())?;
    let shown = args.shown(io::stdout().is_terminal());
    runtime.block_on(watch(&found.run_dir, args, shown))
}

/// A ktsnd that is asked once in an interval.
struct Source {
    run_dir: PathBuf,
    client: NodeClient<Channel>,
    replies: Streaming<v1::StatisticsReply>,
    patience: Duration,
    before: Option<v1::StatisticsReply>,
}

impl Source {
    async fn open(run_dir: &Path, period: Nanos) -> Result<Self, String> {
        let mut client = control::connect(run_dir).await.map_err(|error| error.to_string())?;
        let period_ns = u64::try_from(period.get()).unwrap_or(u64::MAX);
        let request = v1::WatchStatisticsRequest { attachment: String::new(), period_ns };
        let replies = control::answer(run_dir, client.watch_statistics(request))
            .await
            .map_err(|error| error.to_string())?;
        let patience = ANSWER_MAX + Duration::from_nanos(period_ns);
        Ok(Self { run_dir: run_dir.to_owned(), client, replies, patience, before: None })
    }

    /// What happened in the next interval, at its end. The first reply is what the first interval begins with.
    async fn next(&mut self) -> Result<View, String> {
        loop {
            let reply = self.reply().await?;
            let health = control::answer(&self.run_dir, self.client.health(v1::HealthRequest {}))
                .await
                .map_err(|error| error.to_string())?;
            let list = control::answer(&self.run_dir, self.client.list(v1::ListRequest {}))
                .await
                .map_err(|error| error.to_string())?;
            if let Some(before) = self.before.replace(reply.clone()) {
                return Ok(View::between(&before, &reply, &health, &list));
            }
        }
    }

    async fn reply(&mut self) -> Result<v1::StatisticsReply, String> {
        let socket = || control::socket(&self.run_dir);
        match tokio::time::timeout(self.patience, self.replies.message()).await {
            Err(_) => Err(ControlError::Silent(socket()).to_string()),
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Ok(None)) => Err(format!("ktsnd in {} has ended", self.run_dir.display())),
            Ok(Err(status)) => Err(ControlError::Refused(socket(), status).to_string()),
        }
    }

    /// The gates of all ports now.
    async fn gates(&mut self) -> Result<Vec<v1::ScheduleState>, String> {
        let request = v1::GetScheduleRequest { port: String::new() };
        let reply = control::answer(&self.run_dir, self.client.get_schedule(request)).await;
        Ok(reply.map_err(|error| error.to_string())?.ports)
    }
}

async fn watch(run_dir: &Path, args: &TopArgs, shown: Shown) -> Result<(), String> {
    let mut source = Source::open(run_dir, args.interval).await?;
    if shown == Shown::Redrawn {
        return terminal::run(source).await;
    }
    loop {
        let view = source.next().await?;
        let text = match shown {
            Shown::Redrawn | Shown::Table => view.table(),
            Shown::Line => format!("{}\n", view.line()),
            Shown::Json => format!("{}\n", crate::plain::escaped(&view.json().to_string())),
        };
        match output::show(&text)? {
            Written::Whole if !args.once => {}
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    #[test]
    fn a_terminal_gets_a_screen_and_everything_else_gets_lines() {
        for (line, is_terminal, shown) in [
            ("", true, Shown::Redrawn),
            ("", false, Shown::Line),
            ("--once", true, Shown::Table),
            ("--once", false, Shown::Table),
            ("--json", true, Shown::Json),
            ("--json --once", false, Shown::Json),
        ] {
            assert_eq!(parsed::<TopArgs>(line).unwrap().shown(is_terminal), shown, "{line}");
        }
    }

    #[test]
    fn an_interval_is_a_time_that_ktsnd_can_keep() {
        assert_eq!(parsed::<TopArgs>("").unwrap().interval, Nanos::from_seconds(1));
        assert_eq!(parsed::<TopArgs>("--interval 250ms").unwrap().interval, Nanos::from_millis(250));
        assert!(parsed::<TopArgs>("--interval 50ms").unwrap_err().contains("at least 100ms"));
        assert!(parsed::<TopArgs>("--interval 1").unwrap_err().contains("250us"));
    }
}
