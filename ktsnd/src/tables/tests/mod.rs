// SPDX-License-Identifier: Apache-2.0
//! Tables against the kernel, in network namespaces made for each test.

mod changes;
mod content;
mod given;
mod gone;
mod learn;
mod place;
mod router;
mod rules;
mod segment;
mod underlay;
