// SPDX-License-Identifier: Apache-2.0
//! What belongs to the process: its environment, its regions of shared memory, system calls, the C library.

pub(crate) mod abi;
pub(crate) mod clock;
pub(crate) mod env;
pub(crate) mod kernel;
pub(crate) mod limit;
pub(crate) mod line;
pub(crate) mod originals;
pub(crate) mod page;
pub(crate) mod region;
pub(crate) mod root;
pub(crate) mod signals;
pub(crate) mod sys;
