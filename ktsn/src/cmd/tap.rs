// SPDX-License-Identifier: Apache-2.0
//! `ktsn tap`: when frames reach a device. Hidden: the experiments start it; it is of little use alone.
//!
//! In: a device of this network namespace, the listener's port. Out: records with the kernel's stamps, figures. Exit
//! status 0; 1 the kernel dropped frames or left them unstamped, a clock was stepped, or fewer came than asked for; 3 no
//! such device or no right.

use std::process::ExitCode;

use clap::Args;
use ktsn_time::Nanos;
use ktsn_traffic::clock;
use ktsn_traffic::listener::Ended;
use ktsn_traffic::records::save_arrivals;
use ktsn_traffic::tap::{self, TapOptions};

use super::observer::{Failed, Files, span};

/// Record when probes reach a device.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn tap eth0 --port 5000 --records wire.csv --json wire.json")]
pub(crate) struct TapArgs {
    /// The device.
    #[arg(value_name = "IFACE")]
    interface: String,
    /// The listener's UDP port.
    #[arg(long)]
    port: u16,
    /// A datagram to this port is read as VXLAN; 0: none is.
    #[arg(long, default_value_t = tap::VXLAN_PORT, value_name = "PORT")]
    vxlan_port: u16,
    /// Frames to wait for; 0: until SIGINT or SIGTERM.
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// End after this long without such a frame.
    #[arg(long, value_parser = span)]
    timeout: Option<Nanos>,
    /// Record what this machine sends out of the device, too.
    #[arg(long)]
    outgoing: bool,
    #[command(flatten)]
    files: Files,
}

/// Watches and shows what was seen.
pub(crate) fn run(args: &TapArgs) -> ExitCode {
    watch(args).unwrap_or_else(|failed| failed.report("tap"))
}

fn watch(args: &TapArgs) -> Result<ExitCode, Failed> {
    let options = TapOptions {
        interface: args.interface.clone(),
        port: args.port,
        vxlan_port: (args.vxlan_port != 0).then_some(args.vxlan_port),
        count: args.count,
        timeout: args.timeout,
        outgoing: args.outgoing,
    };
    clock::stop_on_signals();
    let outcome = tap::run(&options, || args.files.say_ready(), &clock::stop_requested)
        .map_err(|error| Failed::NotPossible(error.to_string()))?;
    if let Some(path) = &args.files.records {
        save_arrivals(path, &outcome.records)?;
    }
    let s = &outcome.summary;
    let text = format!(
        "saw {} probes ({} in VXLAN), {} other frames; dropped by the kernel {}, unstamped {}, unrecorded {}\n",
        s.frames_seen, s.tunnelled, s.others, s.kernel_drops, s.unstamped, s.unrecorded
    );
    args.files.finish(s, &text)?;
    let missing = s.ended == Ended::Timeout && s.frames_seen < args.count;
    let void = s.kernel_drops > 0 || s.unstamped > 0 || s.unrecorded > 0 || s.clock_stepped;
    Ok(if missing || void { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: TapArgs,
    }

    #[test]
    fn the_port_is_needed_and_a_missing_device_is_not_possible() {
        assert!(Line::try_parse_from(["tap", "lo"]).is_err());
        let line = Line::try_parse_from(["tap", "ktsn-none0", "--port", "5000"]).unwrap();
        let failed = watch(&line.args).unwrap_err();
        assert!(matches!(failed, Failed::NotPossible(ref text) if text.contains("ktsn-none0")), "{failed:?}");
    }
}
