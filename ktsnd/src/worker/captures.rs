// SPDX-License-Identifier: Apache-2.0
//! The sources of captured frames, one for each attachment that has capture on, and their turns.
//!
//! In: sources as they come and go. Out: the next source with a frame; counters, a few sources at a time. Memory is allocated when
//! the worker is made.

use ktsn_resolve::AttachmentIndex;

use super::attachments::Attachments;
use super::captured::Captured;
use crate::limits;

/// All captures of one worker.
#[derive(Debug)]
pub(super) struct Captures {
    /// By attachment.
    all: Vec<Option<Box<Captured>>>,
    /// One above the highest index in use.
    end: usize,
    count: usize,
    /// The source that is asked first in the next intake.
    turn: usize,
    /// The source with the counters that were read last.
    counted_last: usize,
}

impl Captures {
    /// No captures.
    pub(super) fn new() -> Self {
        Self {
            all: (0..limits::ATTACHMENTS_MAX).map(|_| None).collect(),
            end: 0,
            count: 0,
            turn: 0,
            counted_last: 0,
        }
    }

    /// How many sources there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// One above the highest index in use.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// The attachment's source.
    pub(super) fn get(&self, attachment: AttachmentIndex) -> Option<&Captured> {
        self.all.get(usize::from(attachment.0))?.as_deref()
    }

    /// The attachment's source, to take from it.
    pub(super) fn get_mut(&mut self, attachment: AttachmentIndex) -> Option<&mut Captured> {
        self.all.get_mut(usize::from(attachment.0))?.as_deref_mut()
    }

    /// True when the attachment may get a source: its index is in range, and it has none.
    pub(super) fn has_room(&self, attachment: AttachmentIndex) -> bool {
        self.all.get(usize::from(attachment.0)).is_some_and(Option::is_none)
    }

    /// Adds a source where [`Self::has_room`].
    pub(super) fn add(&mut self, new: Box<Captured>) {
        let at = usize::from(new.attachment().0);
        if let Some(place) = self.all.get_mut(at) {
            *place = Some(new);
            self.count += 1;
            self.end = self.end.max(at + 1);
        }
    }

    /// Takes the source out when it is closed and nothing of it is queued.
    pub(super) fn take_if_over(&mut self, attachment: AttachmentIndex) -> Option<Box<Captured>> {
        let source = self.all.get_mut(usize::from(attachment.0))?.take_if(|source| source.is_over())?;
        self.count -= 1;
        while self.end > 0 && self.all[self.end - 1].is_none() {
            self.end -= 1;
        }
        Some(source)
    }

    /// True when the attachment's source has a frame.
    pub(super) fn is_waiting(&self, attachment: AttachmentIndex) -> bool {
        self.get(attachment).is_some_and(Captured::is_waiting)
    }

    /// True when any source has a frame.
    pub(super) fn is_any_waiting(&self) -> bool {
        (0..self.end).any(|at| self.is_waiting(AttachmentIndex(at as u16)))
    }

    /// The next source with a frame that `may_take`, at most `looks` sources from the current turn on. It is asked again until
    /// [`Self::pass_turn`].
    pub(super) fn next_waiting(
        &mut self,
        looks: &mut usize,
        may_take: impl Fn(AttachmentIndex) -> bool,
    ) -> Option<AttachmentIndex> {
        while *looks > 0 && self.end > 0 {
            *looks -= 1;
            if self.turn >= self.end {
                self.turn = 0;
            }
            let attachment = AttachmentIndex(self.turn as u16);
            if self.is_waiting(attachment) && may_take(attachment) {
                return Some(attachment);
            }
            self.turn += 1;
        }
        None
    }

    /// The next source has the turn.
    pub(super) fn pass_turn(&mut self) {
        self.turn += 1;
    }

    /// Polls one source, and passes the turn on; its attachment where it has a frame.
    pub(super) fn poll_one(&mut self) -> Option<AttachmentIndex> {
        let found = self.next_waiting(&mut 1, |_| true)?;
        self.pass_turn();
        Some(found)
    }

    /// Adds what the programs counted since the last look; a few at a time, so that many take no frame's time.
    pub(super) fn housekeeping(&mut self, attachments: &Attachments) {
        for _ in 0..self.end.min(limits::CAPTURED_TENDED) {
            self.counted_last = (self.counted_last + 1) % self.end;
            if let Some(source) = &mut self.all[self.counted_last]
                && let Some(policy) = attachments.get(source.attachment())
            {
                source.count_program(&policy.stats);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::Fake;

    fn captures(count: u16) -> (Captures, Vec<Fake>) {
        let (mut captures, mut rings) = (Captures::new(), Vec::new());
        for index in 0..count {
            let ring = Fake::new();
            rings.push(ring.clone());
            captures.add(ring.captured(AttachmentIndex(index), 4));
        }
        (captures, rings)
    }

    #[test]
    fn sources_with_frames_take_turns() {
        let (mut captures, rings) = captures(4);
        for at in [1, 3] {
            rings[at].send_empty();
        }
        let order: Vec<_> = (0..4)
            .map(|_| {
                let next = captures.next_waiting(&mut 4, |_| true).unwrap();
                captures.pass_turn();
                next.0
            })
            .collect();
        assert_eq!(order, [1, 3, 1, 3]);
        assert_eq!(captures.next_waiting(&mut 4, |of| of != AttachmentIndex(1)), Some(AttachmentIndex(3)));
        assert_eq!(captures.next_waiting(&mut 1, |_| false), None);
    }

    #[test]
    fn a_closed_source_goes_when_nothing_of_it_is_queued() {
        let (mut captures, _rings) = captures(2);
        let last = AttachmentIndex(1);
        assert!(captures.take_if_over(last).is_none() && !captures.has_room(last));
        assert!(captures.get_mut(last).unwrap().close());
        assert!(captures.take_if_over(last).is_some() && captures.has_room(last));
        assert_eq!((captures.count(), captures.end()), (1, 1));
    }
}
