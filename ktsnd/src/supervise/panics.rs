// SPDX-License-Identifier: Apache-2.0
//! A panic in any thread ends the process, in every build. In: a panic. Out: one line on standard error, then SIGABRT.

use std::os::fd::AsFd as _;
use std::panic::PanicHookInfo;

/// Makes a panic in any thread end the process; the program that started ktsnd starts it again.
///
/// A thread that is gone while the others go on would be an outage that no probe sees. Nothing is unwound: the hook runs
/// before that.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        // Not by `eprintln`: no lock, and no panic where standard error is closed.
        let _ = rustix::io::write(std::io::stderr().as_fd(), line(info).as_bytes());
        std::process::abort();
    }));
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let message = info.payload_as_str().unwrap_or("no message").replace('\n', " ");
    let name = thread.name().unwrap_or("without a name");
    format!("ktsnd: panic in thread {name} at {place}: {message}; the process ends\n")
}
