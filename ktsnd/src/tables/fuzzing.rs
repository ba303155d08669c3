// SPDX-License-Identifier: Apache-2.0
//! The readers of the kernel's netlink messages for fuzz targets.

pub use super::kernel::pod_filter::fuzzing::{excepted, nf_tables, older_table};
pub use super::kernel::snapshot::fuzzing::{Layout, layout};
pub use super::kernel::xfrm::fuzzing::policies;
