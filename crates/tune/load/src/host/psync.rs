//! `pread` and `pwrite`, one after the other, however many requests the load has ready.
#![expect(unsafe_code, reason = "pread writes to memory that no Rust reference may name")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::buffers::Buffers;
use crate::drive::{Ended, Engine};
use crate::host::outcome;
use crate::workload::Access;
use crate::{Direction, LoadError, Workload};

pub(super) struct PsyncEngine {
    file: RawFd,
    buffers: Arc<Buffers>,
    block: u32,
    queued: VecDeque<(u16, Access)>,
}

impl PsyncEngine {
    /// `file` must stay open as long as the engine lives.
    pub(super) fn new(file: RawFd, buffers: Arc<Buffers>, workload: &Workload) -> Self {
        Self { file, buffers, block: workload.shape().block().get(), queued: VecDeque::new() }
    }

    fn transfer(&self, slot: u16, access: Access) -> i64 {
        let memory = self.buffers.slot(0, slot).as_ptr().cast();
        let count = usize::try_from(self.block).expect("a block size fits usize");
        let offset = i64::try_from(access.offset).expect("a place in a file");
        let moved = match access.direction {
            // SAFETY: the slot has room for a block, is mapped as long as `self.buffers` lives, and
            // no Rust reference into it exists.
            Direction::Read => unsafe { libc::pread(self.file, memory, count, offset) },
            // SAFETY: as above.
            Direction::Write => unsafe { libc::pwrite(self.file, memory, count, offset) },
        };
        if moved < 0 {
            return -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        i64::try_from(moved).expect("at most a block")
    }
}

impl Engine for PsyncEngine {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        self.queued.push_back((slot, access));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        if let Some((slot, access)) = self.queued.pop_front() {
            let result = self.transfer(slot, access);
            ended.push(Ended { slot, outcome: outcome(result, self.block) });
        }
        Ok(())
    }
}
