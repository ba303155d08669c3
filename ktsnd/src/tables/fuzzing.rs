// SPDX-License-Identifier: Apache-2.0
//! The readers of the kernel's netlink messages for fuzz targets.

pub use super::snapshot::fuzzing::{Layout, layout};
pub use super::xfrm::fuzzing::policies;
