// SPDX-License-Identifier: Apache-2.0
//! The error-queue tier: reports of frames and transmit timestamps, as the kernel gives them.

pub(crate) mod error_queue;
pub(crate) mod reply;
