// SPDX-License-Identifier: Apache-2.0
//! Whether a system is fit for real time: the pure part.
//!
//! In: latencies, requirements, what the kernel counted beside each late wake-up. Out: the statistics of the paper's Table 3, stability
//! over time, verdicts with their margin and duration, isolation, ranked causes, and a comparison of two runs. Nothing here reads a clock
//! or a file, and no figure is made up: what was not measured is `None`.
//!
//! "The paper" is the study of off-the-shelf hypervisors for control devices that `docs/design/realtime.md` names; that page also says
//! which of its definitions are stated there and which are deduced from its tables.

pub mod advice;
pub mod bootstrap;
pub mod causes;
pub mod compare;
pub mod histogram;
pub mod isolation;
pub mod journal;
pub mod profile;
pub mod requirements;
pub mod results;
pub mod stability;
pub mod statistics;
pub mod timeline;
pub mod tracers;
pub mod verdict;

pub use histogram::Histogram;
pub use profile::Profile;
pub use requirements::Requirement;
pub use results::{Cell, RealTime};
pub use statistics::BoxStatistics;
