//! The dirty log of a front end that migrates (vhost-user, "Migration"), in QEMU's order: the log, the features, then
//! each ring.
//!
//! Invariants: marks are taken away by whole words and atomically, as QEMU does it.

use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};

use super::device::RawDevice;
use super::message::{FrontEnd, feature, request};
use crate::memory::SharedMemory;

/// Bytes of guest memory behind one bit.
pub const LOG_PAGE_BYTES: u64 = 4096;
const WORD_BYTES: usize = 8;

/// A log of its own memory.
#[derive(Debug)]
pub struct DirtyLog {
    memory: SharedMemory,
}

impl DirtyLog {
    /// A log for all guest addresses below `end`.
    pub fn new(end: u64) -> Result<Self> {
        let bits = usize::try_from(end.div_ceil(LOG_PAGE_BYTES)).context("size of the log")?;
        let bytes = bits.div_ceil(8).next_multiple_of(WORD_BYTES);
        Ok(Self { memory: SharedMemory::new(bytes)? })
    }

    /// The file behind it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Takes the marks away; the numbers of the marked pages.
    pub fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for offset in (0..self.memory.length()).step_by(WORD_BYTES) {
            let mut word = self.memory.take_u64(offset);
            while word != 0 {
                let bit = u64::from(word.trailing_zeros());
                pages.push(u64::try_from(offset * 8).expect("a small log") + bit);
                word &= word - 1;
            }
        }
        pages
    }

    /// Hands the log over (SET_LOG_BASE) and waits until it is in use.
    pub fn give_to(&self, front_end: &FrontEnd) -> Result<()> {
        let bytes = u64::try_from(self.memory.length()).context("size of the log")?;
        let payload = [bytes, 0].map(u64::to_le_bytes).concat();
        // That there is an answer counts; servers put different things into it.
        front_end.ask_with(request::SET_LOG_BASE, &payload, &[self.file()]).map(drop)
    }
}

impl RawDevice {
    /// Gives the log to the device and has it used for data and all rings.
    pub fn start_log(&self, log: &DirtyLog) -> Result<()> {
        log.give_to(&self.front_end)?;
        self.log(true)
    }

    /// Has the log that the device was given before used again.
    pub fn use_log_again(&self) -> Result<()> {
        self.log(true)
    }

    /// Has nothing logged any more.
    pub fn stop_log(&self) -> Result<()> {
        self.log(false)
    }

    fn log(&self, on: bool) -> Result<()> {
        let features = if on { self.features | feature::LOG_ALL } else { self.features };
        self.front_end.must(request::SET_FEATURES, &features.to_le_bytes(), &[])?;
        for queue in (0..).take(self.rings.len()) {
            let [_, used, _] = self.ring(queue).offsets();
            let log_address = on.then(|| self.guest_address(used));
            let payload = self.ring_addresses(queue, log_address);
            self.front_end.must(request::SET_VRING_ADDR, &payload, &[])?;
        }
        Ok(())
    }
}
