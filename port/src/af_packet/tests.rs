// SPDX-License-Identifier: Apache-2.0
//! Every answer that a packet socket can give, from a scripted one.

use super::*;

#[derive(Default)]
struct Script {
    answers: Vec<Errno>,
    sent: Vec<Vec<u8>>,
    carrier: bool,
}

impl Wire for Script {
    fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        match self.answers.pop() {
            Some(errno) => Err(errno),
            None => {
                self.sent.push(frame.to_vec());
                Ok(())
            }
        }
    }

    fn link_state(&self) -> LinkState {
        if self.carrier { LinkState::Up } else { LinkState::Down }
    }
}

fn engine(answers: Vec<Errno>, carrier: bool) -> AfPacket<Script> {
    let capabilities = Capabilities {
        adapter: "script",
        ifindex: 1,
        mac: [0; 6],
        mtu_octets: 1500,
        frame_octets_max: 1518,
        stage_count: 4,
    };
    let wire = Script { answers, carrier, ..Script::default() };
    AfPacket::new(wire, Stages::new(4).unwrap(), 1536, capabilities)
}

#[test]
fn each_errno_has_its_word_and_frees_the_buffer() {
    for (errno, carrier, word) in [
        (Errno::NETDOWN, true, SendError::LinkDown),
        (Errno::NXIO, true, SendError::DeviceGone),
        (Errno::MSGSIZE, true, SendError::TooLong),
        (Errno::AGAIN, true, SendError::Busy),
        (Errno::NOMEM, true, SendError::NoMemory),
        (Errno::NOBUFS, true, SendError::Dropped),
        (Errno::NOBUFS, false, SendError::LinkDown),
        (Errno::PERM, true, SendError::Os { errno: libc::EPERM }),
    ] {
        let mut engine = engine(vec![errno], carrier);
        let stage = engine.stage_copy(&[7; 60]).unwrap();
        assert_eq!(engine.commit(stage), Err(word), "{errno:?}");
        assert_eq!(engine.occupancy(), Occupancy { free: 4, staged: 0, in_flight: 0 });
        assert_eq!((engine.counters().failed_count, engine.counters().committed_count), (1, 0));
        assert!(engine.wire.sent.is_empty());
        let stage = engine.stage_copy(&[8; 61]).unwrap();
        assert_eq!(engine.commit(stage), Ok(()), "the next one goes out");
        assert_eq!(engine.wire.sent, [vec![8; 61]]);
    }
}
