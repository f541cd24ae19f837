//! io_uring at its best: one registered buffer for all slots, and a registered file.
#![expect(unsafe_code, reason = "io_uring takes addresses of memory")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use crate::buffers::Buffers;
use crate::drive::{Ended, Engine};
use crate::host::{outcome, ring};
use crate::workload::Access;
use crate::{Direction, LoadError, Workload};

pub(super) struct FixedEngine {
    ring: IoUring,
    buffers: Arc<Buffers>,
    block: u32,
    in_flight: usize,
}

impl FixedEngine {
    pub(super) fn new(
        file: RawFd,
        buffers: Arc<Buffers>,
        workload: &Workload,
    ) -> Result<Self, LoadError> {
        let shape = workload.shape();
        let failed = |what: &'static str| move |error| LoadError::set_up(what, error);
        let ring = ring(u32::from(shape.iodepth())).map_err(failed("create an io_uring"))?;
        ring.submitter().register_files(&[file]).map_err(failed("register the file"))?;
        let (address, bytes) = buffers.region();
        let region = [libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes }];
        // SAFETY: the region is the mapping of `buffers`, which the engine keeps until nothing is
        // in flight.
        unsafe { ring.submitter().register_buffers(&region) }
            .map_err(failed("register the buffers"))?;
        Ok(Self { ring, buffers, block: shape.block().get(), in_flight: 0 })
    }

    fn enter(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Engine for FixedEngine {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        let (memory, block) = (self.buffers.slot(0, slot).as_ptr(), self.block);
        let (file, at) = (types::Fixed(0), access.offset);
        let entry = match access.direction {
            Direction::Read => opcode::ReadFixed::new(file, memory, block, 0).offset(at).build(),
            Direction::Write => opcode::WriteFixed::new(file, memory, block, 0).offset(at).build(),
        };
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: `push` needs the entry's memory to stay valid until its completion. It is a slot
        // of `self.buffers`, free by the contract of `Engine::submit` and kept by `drop`; the ring
        // itself holds the file.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|error| LoadError::set_up("submit to io_uring", io::Error::other(error)))?;
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        Ok(()) // `wait` submits and sleeps with one system call.
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.enter().map_err(|error| LoadError::set_up("wait for io_uring", error))?;
        for entry in self.ring.completion() {
            self.in_flight -= 1;
            let slot = u16::try_from(entry.user_data()).expect("submit stored a slot");
            ended.push(Ended { slot, outcome: outcome(entry.result().into(), self.block) });
        }
        Ok(())
    }
}

impl Drop for FixedEngine {
    /// Waits until the kernel has let go of the buffers; if that fails, they are never unmapped.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.enter().is_err() {
                let _leaked = ManuallyDrop::new(Arc::clone(&self.buffers));
                return;
            }
            self.in_flight -= self.ring.completion().count();
        }
    }
}
