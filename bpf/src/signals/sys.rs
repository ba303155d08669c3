// SPDX-License-Identifier: Apache-2.0
//! Keeps signals away from a thread. In: nothing. Out: the thread's mask, put back as it was.

/// No signal reaches this thread as long as it lives: the verifier gives up (EAGAIN) when one is there.
pub(crate) struct NoSignals(libc::sigset_t);

impl NoSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: a signal set is plain integers; both are valid, and filled by the calls.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
