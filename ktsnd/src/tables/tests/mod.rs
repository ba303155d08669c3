// SPDX-License-Identifier: Apache-2.0
//! Tables against the kernel, in network namespaces made for each test.

mod beside;
mod changes;
mod content;
mod differential;
mod given;
mod gone;
mod learn;
mod place;
mod router;
mod routing;
mod rules;
mod segment;
#[allow(unsafe_code)]
mod sys;
mod underlay;
