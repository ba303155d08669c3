// SPDX-License-Identifier: Apache-2.0
//! `ktsn clock publish`: the host's side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ktsn_clock::host::{Options, Pace, Publisher, Woken};
use ktsn_clock::kernel;
use ktsn_clock::region::Region;
use ktsn_host::qmp::Events;
use ktsn_traffic::clock;

const EXAMPLES: &str = "\
Examples:
  ktsn clock publish --page /dev/shm/guest1.page --exchange /dev/shm/guest1.exchange
  ktsn clock publish --page /dev/shm/g1.page --exchange /dev/shm/g1.exchange --qmp /run/g1.qmp

QEMU gives the guest both files as devices; the page is read-only to it:
  -object memory-backend-file,id=page,size=64K,share=on,readonly=on,mem-path=/dev/shm/guest1.page
  -device ivshmem-plain,memdev=page,master=on
  -object memory-backend-file,id=exchange,size=64K,share=on,mem-path=/dev/shm/guest1.exchange
  -device ivshmem-plain,memdev=exchange,master=on
  -qmp unix:/run/guest1.qmp,server=on,wait=off

Each guest needs files and a publisher of its own. The page tells of CLOCK_REALTIME of this host, which ptp4l, phc2sys or chrony keeps.";

/// Publish this host's clock to one guest.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct PublishArgs {
    /// The page's file; it is made unless it is there.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
    /// The exchange area's file; it is made unless it is there.
    #[arg(long, value_name = "FILE")]
    exchange: PathBuf,
    /// Time between two pages, 1 ms to 1 s.
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// A socket of QEMU's monitor (QMP), which says when the guest was paused or moved. It may be made later, and again.
    #[arg(long, value_name = "SOCKET")]
    qmp: Option<PathBuf>,
    /// Stop after this time [default: on SIGINT or SIGTERM].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
}

/// Publishes until a signal or a time, and hears QEMU's events.
struct ByMonitor<'a> {
    events: Option<(Events, &'a Path)>,
    until: Option<Instant>,
}

impl Pace for ByMonitor<'_> {
    fn goes_on(&mut self) -> bool {
        !clock::stop_requested() && self.until.is_none_or(|until| Instant::now() < until)
    }

    fn sleep(&mut self, nap: Duration) -> Woken {
        if let Some((events, path)) = &mut self.events {
            let woken = events.sleep(nap);
            if let Some(trouble) = events.trouble() {
                eprintln!(
                    "ktsn clock publish: --qmp {}: {trouble}; pauses are not heard of; it is looked for each second",
                    path.display()
                );
            }
            return woken;
        }
        std::thread::sleep(nap);
        Woken::Slept
    }
}

pub(super) fn run(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let (page, exchange) = Region::create_both(&args.page, &args.exchange)
        .map_err(|(path, error)| anyhow::anyhow!("{}: {error}; name a file in /dev/shm", path.display()))?;
    let options = Options { interval: args.interval };
    let mut publisher =
        Publisher::new(page, exchange, options).map_err(|error| anyhow::anyhow!("--interval: {error}"))?;
    let began = Instant::now();
    let events = args.qmp.as_deref().map(|path| (Events::at(path), path));
    publisher.run(&mut ByMonitor { events, until: args.duration.map(|duration| began + duration) })?;
    let (done, cpu) = (publisher.done(), kernel::thread_cpu().get() as f64 * 1e-9);
    let seconds = began.elapsed().as_secs_f64();
    eprintln!(
        "published {} pages in {seconds:.1} s; {} windows, {} answers, {} steps of the host's clock, {} pauses of the guest; {:.3} % of a CPU",
        done.pages,
        done.windows,
        done.answers,
        done.steps,
        done.disruptions,
        cpu / seconds * 100.0
    );
    Ok(ExitCode::SUCCESS)
}
