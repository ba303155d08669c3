// SPDX-License-Identifier: Apache-2.0
//! The arguments of experiments whose second side may run on another machine. In: the command line. Out: the two hosts, or none.

use std::str::FromStr;

use clap::Args;
use ktsn_lab::LabError;
use ktsn_lab::remote::Target;
use ktsn_lab::remote::hosts::Hosts;

use super::super::remote::{OtherArgs, version};

/// Where the two sides run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Two hosts")]
pub(super) struct HostsArgs {
    /// Where both sides run: on this machine, or the second one on HOST. Both clocks must be held by chrony or ptp4l.
    #[arg(long, value_delimiter = ',', value_name = "local,ssh:HOST", default_value = "local")]
    hosts: Vec<Place>,
    /// This machine's device that leads to HOST; it gets a macvlan for the time of the run.
    #[arg(long, value_name = "DEVICE")]
    uplink: Option<String>,
    /// The device of HOST that leads here [default: that of --uplink].
    #[arg(long, value_name = "DEVICE", requires = "uplink")]
    remote_uplink: Option<String>,
    #[command(flatten)]
    other: OtherArgs,
}

/// One side's place.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Local,
    Remote(Target),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "local" { Ok(Self::Local) } else { text.parse().map(Self::Remote) }
    }
}

impl HostsArgs {
    /// The two hosts; `None`: both sides run here.
    pub(super) fn hosts(&self) -> Result<Option<Hosts>, LabError> {
        let target = match self.hosts.as_slice() {
            [Place::Local] | [Place::Local, Place::Local] => return self.no_other(),
            [Place::Local, Place::Remote(target)] => target.clone(),
            _ => {
                let text = "--hosts: expected local, or local,ssh:HOST: the first side runs on this machine";
                return Err(LabError::Usage(text.to_owned()));
            }
        };
        let Some(uplink) = self.uplink.clone() else {
            let text = format!("--uplink: expected this machine's device that leads to {target}");
            return Err(LabError::Usage(text));
        };
        let remote = self.other.remote(target);
        let there = self.remote_uplink.clone().unwrap_or_else(|| uplink.clone());
        Ok(Some(Hosts { remote, uplinks: [uplink, there], within: self.other.within, version: version() }))
    }

    fn no_other(&self) -> Result<Option<Hosts>, LabError> {
        match &self.uplink {
            None => Ok(None),
            Some(_) => Err(LabError::Usage("--uplink: expected with --hosts local,ssh:HOST only".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;
    use ktsn_time::Nanos;

    fn hosts(line: &str) -> Result<Option<Hosts>, String> {
        parsed::<HostsArgs>(line)?.hosts().map_err(|error| error.to_string())
    }

    #[test]
    fn the_second_side_may_be_elsewhere() {
        for line in ["", "--hosts local", "--hosts local,local"] {
            assert!(hosts(line).unwrap().is_none(), "{line}");
        }
        let two = hosts("--hosts local,ssh:plc --uplink eth1 --within 50us").unwrap().unwrap();
        assert_eq!(two.remote.target.to_string(), "ssh:plc");
        assert_eq!((two.uplinks, two.within), (["eth1", "eth1"].map(str::to_owned), Nanos::from_micros(50)));
        let two = hosts("--hosts local,ssh:plc --uplink eth1 --remote-uplink eth2").unwrap().unwrap();
        assert_eq!(two.uplinks, ["eth1", "eth2"].map(str::to_owned));
        for (line, word) in [
            ("--hosts ssh:plc,local --uplink eth1", "the first side runs on this machine"),
            ("--hosts ssh:plc --uplink eth1", "the first side"),
            ("--hosts local,ssh:a,ssh:b --uplink eth1", "the first side"),
            ("--hosts local,plc", "ssh:HOST"),
            ("--hosts local,ssh:plc", "--uplink"),
            ("--uplink eth1", "--hosts local,ssh:HOST only"),
            ("--remote-uplink eth1", "--uplink"),
        ] {
            let error = hosts(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
