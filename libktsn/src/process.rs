// SPDX-License-Identifier: Apache-2.0
//! What belongs to the process: its environment, its descriptors, its regions of shared memory, its attachment to ktsnd.

pub(crate) mod abi;
pub(crate) mod attach;
pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod env;
pub(crate) mod fds;
pub(crate) mod hwtstamp;
pub(crate) mod kernel;
pub(crate) mod limit;
pub(crate) mod line;
pub(crate) mod originals;
pub(crate) mod page;
pub(crate) mod region;
pub(crate) mod signals;
pub(crate) mod sys;
