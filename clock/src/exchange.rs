// SPDX-License-Identifier: Apache-2.0
//! The exchange area: four time stamps of one round trip between guest and host.
//!
//! In: shared memory that the other side may write at any moment. Out: [`Exchange`]s. The host reads two words of the guest, a request and a
//! number, compares them with what it has served, and uses them for nothing else.
//!
//! The guest asks for a window and sleeps until the page announces it. Only in a window do both sides spin, for as long as the host allows.

use crate::seqlock::Memory;
use crate::{Guest, Host};
use std::sync::atomic::Ordering;

/// "KTSNexch".
const MAGIC: u64 = u64::from_le_bytes(*b"KTSNexch");
const MAGIC_WORD: usize = 0;
// The host's words, then the guest's, in cache lines of their own.
const ANSWERED: usize = 16;
const RECEIVED_AT: usize = 17;
const ANSWERED_AT: usize = 18;
const ASKED: usize = 32;
const PING: usize = 48;
/// The guest needs no more of this window.
const DONE: u64 = u64::MAX;
/// Answers in one window.
pub const ANSWERS_MAX: u32 = 256;

/// One round trip: sent and returned by the guest's counter, received and answered by the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The guest's counter before it asked.
    pub sent: Guest,
    /// The host's counter when it saw the request.
    pub received: Host,
    /// The host's counter before it answered.
    pub answered: Host,
    /// The guest's counter after it saw the answer.
    pub returned: Guest,
}

/// The host's side.
#[derive(Debug)]
pub struct Server {
    /// The last request for a window that was served.
    served: u64,
    /// The last number that was answered.
    answered: u64,
}

impl Server {
    /// Prepares the area. A request that was made before is served.
    pub fn new(area: &impl Memory) -> Self {
        area.store(MAGIC_WORD, MAGIC);
        Self { served: 0, answered: area.load(PING) }
    }

    /// The window that the guest wants and has not had; never 0.
    pub fn wanted(&self, area: &impl Memory) -> Option<u64> {
        let asked = area.load(ASKED);
        (asked != 0 && asked != self.served).then_some(asked)
    }

    /// Before a window is announced: what a guest has written late, for an earlier one, belongs to that one.
    pub fn begin(&mut self, area: &impl Memory) {
        self.answered = area.load(PING);
    }

    /// Serves a window: answers until the guest is done, or `goes_on` says no. The number of answers.
    pub fn serve(
        &mut self,
        area: &impl Memory,
        window: u64,
        counter: &mut dyn FnMut() -> u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> u32 {
        self.served = window;
        let mut answers = 0;
        while answers < ANSWERS_MAX && goes_on() {
            // Between two looks at the limit: an answer comes within nanoseconds.
            for _ in 0..64 {
                let ping = area.load(PING);
                if ping == self.answered {
                    std::hint::spin_loop();
                    continue;
                }
                if ping == DONE {
                    self.answered = ping;
                    return answers;
                }
                area.fence(Ordering::Acquire);
                let received = counter();
                // Two programs of the guest may ask: the one that reads an earlier answer now sees that it goes.
                area.store(ANSWERED, 0);
                area.fence(Ordering::Release);
                area.store(RECEIVED_AT, received);
                area.store(ANSWERED_AT, counter());
                area.fence(Ordering::Release);
                area.store(ANSWERED, ping);
                self.answered = ping;
                answers += 1;
            }
        }
        answers
    }
}

/// The guest's side.
#[derive(Debug)]
pub struct Client {
    number: u64,
}

/// Whether octets of a file begin as an exchange area does.
pub(crate) fn is_area_of(octets: &[u8]) -> bool {
    octets.starts_with(&MAGIC.to_le_bytes())
}

/// Whether the memory is an exchange area.
pub fn is_area(area: &impl Memory) -> bool {
    area.load(MAGIC_WORD) == MAGIC
}

impl Client {
    /// `seed`: another number than earlier clients of this area had; a counter's value will do.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { number: seed & (u64::MAX >> 1) }
    }

    /// Asks for a window; its number.
    pub fn ask(&mut self, area: &impl Memory) -> u64 {
        self.number += 1;
        area.store(ASKED, self.number);
        self.number
    }

    /// Takes the request back: a window that opens while nothing waits for it is lost.
    pub fn withdraw(&self, area: &impl Memory) {
        if area.load(ASKED) == self.number {
            area.store(ASKED, 0);
        }
    }

    /// One round trip in an open window; `None`: no answer while `goes_on`.
    pub fn exchange(
        &mut self,
        area: &impl Memory,
        counter: &mut dyn FnMut() -> u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Exchange> {
        self.number += 1;
        let ping = self.number;
        let sent = Guest(counter());
        area.fence(Ordering::Release);
        area.store(PING, ping);
        loop {
            for _ in 0..64 {
                if area.load(ANSWERED) == ping {
                    area.fence(Ordering::Acquire);
                    let returned = Guest(counter());
                    let (received, answered) = (Host(area.load(RECEIVED_AT)), Host(area.load(ANSWERED_AT)));
                    area.fence(Ordering::Acquire);
                    if area.load(ANSWERED) == ping {
                        return Some(Exchange { sent, received, answered, returned });
                    }
                }
                std::hint::spin_loop();
            }
            if !goes_on() {
                return None;
            }
        }
    }

    /// Says that no more is needed of the window.
    pub fn done(&self, area: &impl Memory) {
        area.store(PING, DONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Memory in which, at the load of a word, something happens once.
    struct Meeting<'m> {
        words: &'m [Cell<u64>; 64],
        at: usize,
        happens: &'m dyn Fn(),
        is_over: Cell<bool>,
    }

    impl Memory for Meeting<'_> {
        fn load(&self, word: usize) -> u64 {
            if word == self.at && !self.is_over.replace(true) {
                (self.happens)();
            }
            self.words.load(word)
        }
        fn store(&self, word: usize, value: u64) {
            self.words.store(word, value);
        }
        fn fence(&self, _: Ordering) {}
    }

    /// Another program of the guest gets its answer while the first one reads its own: no stamp of the second is the first one's.
    #[test]
    fn an_answer_to_another_is_not_taken() {
        for at in [RECEIVED_AT, ANSWERED_AT] {
            let words = [const { Cell::new(0) }; 64];
            let server = std::cell::RefCell::new(Server::new(&words));
            let serve = |counter: u64| {
                let mut looks = 0..1;
                server.borrow_mut().serve(&words, 1, &mut || counter, &mut || looks.next().is_some());
            };
            let happens = || {
                words.store(PING, 5_000);
                serve(900);
            };
            let area = Meeting { words: &words, at, happens: &happens, is_over: Cell::new(false) };
            let mut asked = 0;
            let made = Client::new(7).exchange(&area, &mut || 100, &mut || {
                asked += 1;
                serve(200);
                asked < 3
            });
            assert!(made.is_none_or(|made| made.answered == Host(200)), "{made:?}");
            assert!(area.is_over.get());
        }
    }

    /// The guest's end of an earlier window comes after that window: the next one is open all the same.
    #[test]
    fn a_late_end_does_not_end_the_next_window() {
        let area = [const { Cell::new(0) }; 64];
        let mut server = Server::new(&area);
        let mut client = Client::new(7);
        client.ask(&area);
        client.done(&area);
        let window = server.wanted(&area).unwrap();
        server.begin(&area);
        let mut looks = 0;
        server.serve(&area, window, &mut || 1, &mut || {
            looks += 1;
            looks < 3
        });
        assert_eq!(looks, 3, "the window was closed by an old word");
    }

    /// A guest that gives up does not spend a window later, while it sleeps. What another program of the guest asked for stays.
    #[test]
    fn a_request_that_was_given_up_opens_no_window() {
        let area = [const { Cell::new(0) }; 64];
        let server = Server::new(&area);
        let (mut first, mut second) = (Client::new(1), Client::new(100));
        first.ask(&area);
        first.withdraw(&area);
        assert_eq!(server.wanted(&area), None);
        first.ask(&area);
        let asked = second.ask(&area);
        first.withdraw(&area);
        assert_eq!(server.wanted(&area), Some(asked));
    }
}
