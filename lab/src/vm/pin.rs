// SPDX-License-Identifier: Apache-2.0
//! A list of CPUs, as the kernel writes it: `0,2-3`.

use crate::error::LabError;
use ktsn_host::cpus_of;
use std::fmt;
use std::str::FromStr;

/// The kernel's list of the CPUs that run.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// More CPUs than the kernel's affinity calls are asked about.
const CPU_MAX: usize = 1023;

/// CPUs, ascending, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = cpus_of(text.trim(), CPU_MAX)
            .ok_or_else(|| format!("expected numbers and ranges of CPUs up to {CPU_MAX}, such as 0,2-3"))?;
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        out.write_str(&words.join(","))
    }
}

impl Cpus {
    /// A single CPU.
    pub(crate) fn one(cpu: usize) -> Self {
        Self(vec![cpu])
    }

    /// The CPUs by number.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// # Errors
    /// [`LabError::Usage`]: this machine does not have one of them.
    pub(super) fn check(&self) -> Result<(), LabError> {
        let online = std::fs::read_to_string(ONLINE).map_err(LabError::file(ONLINE))?;
        let has: Self =
            online.parse().map_err(|problem| LabError::Contents { path: ONLINE.into(), problem })?;
        match self.0.iter().find(|cpu| !has.0.contains(cpu)) {
            Some(cpu) => Err(LabError::Usage(format!(
                "--pin {self}: this machine has no CPU {cpu}; expected {}",
                online.trim()
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        for (text, expected) in [("0", "0"), ("3,0-1", "0,1,3"), ("2-2,1,2\n", "1,2")] {
            assert_eq!(text.parse::<Cpus>().unwrap().to_string(), expected);
        }
        for wrong in ["", "a", "1-", "-1", "2-1", "0,,1", "1024", "0-99999999999999999999"] {
            assert!(wrong.parse::<Cpus>().unwrap_err().contains("0,2-3"), "{wrong}");
        }
        "0".parse::<Cpus>().unwrap().check().unwrap();
        let error = "0,1023".parse::<Cpus>().unwrap().check().unwrap_err().to_string();
        assert!(error.contains("--pin 0,1023: this machine has no CPU 1023"), "{error}");
    }
}
