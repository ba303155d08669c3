// SPDX-License-Identifier: Apache-2.0
//! Turns between the attachments of a class once more, as plainly as the rule says them: every frame has a rank, the greatest
//! leaves. In: frames with their due instants, and who was served. Out: ranks. Shares no code with the crate.

use ktsn_sched::{Frame, FrameId};
use ktsn_time::Now;
use std::cmp::Reverse;
use std::collections::HashMap;

/// When an attachment had its turn in a class, and the number of that turn.
type Turn = (Now, i128);

/// For how long it has stood; not served since it was due before served, by arrival or by turn; for how long it has been due; arrival.
pub(crate) type Rank = (i128, Reverse<(bool, i128)>, i128, Reverse<i128>);

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    attachments: u32,
    served: HashMap<(u32, u8), Turn>,
    count: i128,
    latest: Option<Now>,
    /// The frame that was chosen last, its due instant, and the turn that its attachment had before.
    last: Option<(FrameId, i128, Option<Turn>)>,
}

fn clock(now: Now, on_tai: bool) -> i128 {
    if on_tai { now.tai.as_nanos().into() } else { now.monotonic.as_nanos().into() }
}

impl Rule {
    pub(crate) fn new(attachments: u32) -> Self {
        Self { attachments, served: HashMap::new(), count: 0, latest: None, last: None }
    }

    /// Attachment and class: those who take turns.
    pub(crate) fn place(&self, frame: &Frame) -> (u32, u8) {
        (frame.attachment % self.attachments, frame.class.get())
    }

    /// A clock that shows an instant before the last turn makes all turns void.
    pub(crate) fn see(&mut self, now: Now) {
        if self.latest.is_some_and(|latest| now.tai < latest.tai || now.monotonic < latest.monotonic) {
            self.served.clear();
            self.latest = None;
            self.last = self.last.map(|(id, due, _)| (id, due, None));
        }
    }

    pub(crate) fn rank(&self, frame: &Frame, on_tai: bool, due: i128, arrival: i128, now: Now) -> Rank {
        let overdue = clock(now, on_tai) - due;
        let turn = self.served.get(&self.place(frame)).filter(|turn| clock(turn.0, on_tai) >= due);
        match turn {
            None => (overdue, Reverse((false, arrival)), overdue, Reverse(arrival)),
            Some(&(at, number)) => {
                let stood = clock(now, on_tai) - clock(at, on_tai);
                (stood, Reverse((true, number)), overdue, Reverse(arrival))
            }
        }
    }

    /// `frame`, due at `due`, is chosen at `now`, to leave or to be dropped.
    pub(crate) fn serve(&mut self, frame: &Frame, due: i128, now: Now) {
        self.count += 1;
        self.latest = Some(now);
        let before = self.served.insert(self.place(frame), (now, self.count));
        self.last = Some((frame.id, due, before));
    }

    /// `frame` comes back: where it was if it was the last one, with the instant that it was due at; else as if it never had a turn.
    pub(crate) fn take_back(&mut self, frame: &Frame) -> Option<i128> {
        let last = self.last.take().filter(|(id, ..)| *id == frame.id);
        match last.and_then(|(_, _, turn)| turn) {
            Some(turn) => self.served.insert(self.place(frame), turn),
            None => self.served.remove(&self.place(frame)),
        };
        last.map(|(_, due, _)| due)
    }
}
