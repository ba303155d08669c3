// SPDX-License-Identifier: Apache-2.0
//! A wrapper that writes what a port puts onto the wire to a capture file.
//!
//! In: commits. Out: the same commits on the port inside, and after each success a record with nanosecond
//! resolution in the classic capture format (magic 0xa1b23c4d, link type Ethernet), stamped with CLOCK_REALTIME
//! right before the commit. For debugging only: copying, stamping and writing happen on the worker's thread, so
//! figures taken with it say nothing. A write error never fails a send: recording stops and the error is kept.

use std::io::{self, Write};

use rustix::time::{ClockId, clock_gettime};

use crate::error::{SendError, StageError};
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const SNAP_OCTETS: u32 = 262_144;
const LINK_TYPE_ETHERNET: u32 = 1;

/// The wrapper. `W` is best buffered; it is flushed when the wrapper is dropped or taken apart.
#[derive(Debug)]
pub struct Pcap<P, W: Write> {
    port: P,
    /// `None` after an error, or when taken apart.
    writer: Option<W>,
    error: Option<io::Error>,
    frame: Vec<u8>,
}

impl<P: Port, W: Write> Pcap<P, W> {
    /// Writes the file header and wraps `port`.
    ///
    /// # Errors
    /// What the writer says.
    pub fn new(port: P, mut writer: W) -> io::Result<Self> {
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC_NANOSECONDS.to_le_bytes());
        header.extend(VERSION.into_iter().flat_map(u16::to_le_bytes));
        header.extend([0; 8]); // time zone and accuracy: always zero
        header.extend(SNAP_OCTETS.to_le_bytes());
        header.extend(LINK_TYPE_ETHERNET.to_le_bytes());
        writer.write_all(&header)?;
        let frame = Vec::with_capacity(port.capabilities().frame_octets_max);
        Ok(Self { port, writer: Some(writer), error: None, frame })
    }

    /// The port inside.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Why recording stopped, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// What the writer says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Write::flush)
    }

    fn record(&mut self, seconds: i64, nanoseconds: i64) {
        let Some(writer) = &mut self.writer else { return };
        let octets = self.frame.len() as u32;
        let words = [seconds as u32, nanoseconds as u32, octets, octets];
        let written = words
            .into_iter()
            .try_for_each(|word| writer.write_all(&word.to_le_bytes()))
            .and_then(|()| writer.write_all(&self.frame));
        if let Err(error) = written {
            self.error = Some(error);
            self.writer = None;
        }
    }
}

impl<P, W: Write> Drop for Pcap<P, W> {
    fn drop(&mut self) {
        if let Some(writer) = &mut self.writer {
            // Nobody is left to tell; callers who care flush first.
            let _unwritten = writer.flush();
        }
    }
}

/// `commit_many` stays one by one: a batch's report does not tell which frames went out.
impl<P: Port, W: Write> Port for Pcap<P, W> {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        self.port.stage(build)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        self.port.staged_frame(stage)
    }

    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        self.frame.clear();
        // The copy comes first: after the commit the octets belong to the kernel.
        self.frame.extend_from_slice(self.port.staged_frame(stage).unwrap_or_default());
        let at = clock_gettime(ClockId::Realtime);
        self.port.commit(stage)?;
        self.record(at.tv_sec, at.tv_nsec);
        Ok(())
    }

    fn warm_up(&mut self) {
        self.port.warm_up();
    }

    fn abandon(&mut self, stage: StageId) {
        self.port.abandon(stage);
    }

    fn reap(&mut self) -> usize {
        self.port.reap()
    }

    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    fn link_up(&self) -> bool {
        self.port.link_up()
    }

    fn occupancy(&self) -> Occupancy {
        self.port.occupancy()
    }

    fn counters(&self) -> Counters {
        self.port.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn word(octets: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(octets[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn the_file_holds_the_frames_that_went_out_and_no_others() {
        let mut file = Vec::new();
        {
            let mut port = Pcap::new(Memory::new(4, 1500).unwrap(), &mut file).unwrap();
            let stages: Vec<_> = (0..3_u8).map(|n| port.stage_copy(&[n; 60]).unwrap()).collect();
            port.commit(stages[1]).unwrap();
            port.abandon(stages[0]);
            port.inner_mut().set_link_up(false);
            assert_eq!(port.commit(stages[2]), Err(SendError::LinkDown));
            port.inner_mut().set_link_up(true);
            let last = port.stage_copy(&[9; 1514]).unwrap();
            assert_eq!(port.commit_many(&[last]).taken_count, 1);
            assert!(port.error().is_none());
        }
        assert_eq!(file.len(), 24 + 16 + 60 + 16 + 1514);
        assert_eq!((word(&file, 0), word(&file, 20)), (MAGIC_NANOSECONDS, LINK_TYPE_ETHERNET));
        assert!(word(&file, 24) > 1_600_000_000 && word(&file, 28) < 1_000_000_000);
        assert_eq!((word(&file, 32), word(&file, 36)), (60, 60));
        assert_eq!(file[40..100], [1; 60]);
        assert_eq!(word(&file, 108), 1514);
        assert_eq!(file[116..], [9; 1514]);
    }

    struct Full;
    impl Write for Full {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            if octets.len() == 24 { Ok(24) } else { Err(io::ErrorKind::StorageFull.into()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_stops_the_recording_not_the_port() {
        let mut port = Pcap::new(Memory::new(4, 1500).unwrap().recording(4), Full).unwrap();
        for n in 0..2 {
            let stage = port.stage_copy(&[n; 60]).unwrap();
            assert_eq!(port.commit(stage), Ok(()));
        }
        assert_eq!(port.error().map(io::Error::kind), Some(io::ErrorKind::StorageFull));
        assert_eq!(port.inner_mut().take_recorded().len(), 2);
    }
}
