//! Linux AIO by its system calls: one `io_submit` and one `io_getevents` per turn.
//!
//! Invariants: the control block of a slot is rewritten only while the slot is free, and lives with
//! the buffers until the context is destroyed, which waits for the kernel.
#![expect(unsafe_code, reason = "Linux AIO takes addresses of memory; libc has no wrappers for it")]

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use crate::buffers::Buffers;
use crate::drive::{Ended, Engine};
use crate::host::outcome;
use crate::workload::Access;
use crate::{Direction, LoadError, Workload};

const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// `struct iocb` of `linux/aio_abi.h` on little-endian hosts.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    file: u32,
    memory: u64,
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_file: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

pub(super) struct LibaioEngine {
    context: libc::c_ulong,
    file: RawFd,
    buffers: Arc<Buffers>,
    block: u32,
    blocks: Box<[ControlBlock]>,
    queued: Vec<*mut ControlBlock>,
    events: Box<[Event]>,
}

impl LibaioEngine {
    /// `file` must stay open as long as the engine lives.
    pub(super) fn new(
        file: RawFd,
        buffers: Arc<Buffers>,
        workload: &Workload,
    ) -> Result<Self, LoadError> {
        let depth = usize::from(workload.shape().iodepth());
        let mut context: libc::c_ulong = 0;
        // SAFETY: `io_setup` writes the new context to a variable that lives during the call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        checked(made).map_err(|error| LoadError::set_up("set Linux AIO up", error))?;
        Ok(Self {
            context,
            file,
            buffers,
            block: workload.shape().block().get(),
            blocks: vec![ControlBlock::default(); depth].into(),
            queued: Vec::with_capacity(depth),
            events: vec![Event::default(); depth].into(),
        })
    }

    fn submit_queued(&mut self) -> io::Result<()> {
        let mut from = 0;
        while from < self.queued.len() {
            let left = &self.queued[from..];
            // SAFETY: `left` lists control blocks of `self.blocks`, which with the slots they name
            // stay untouched until their events: `Engine::submit` is called for free slots only.
            let taken = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, left.len(), left.as_ptr())
            };
            from += checked(taken)?;
        }
        self.queued.clear();
        Ok(())
    }

    fn get_events(&mut self) -> io::Result<usize> {
        let (least, most) = (1_usize, self.events.len());
        let (events, no_limit) = (self.events.as_mut_ptr(), ptr::null::<libc::timespec>());
        // SAFETY: `events` has room for `most` events; no time limit is given.
        let got = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, least, most, events, no_limit)
        };
        match checked(got) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other,
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_negative| io::Error::last_os_error())
}

impl Engine for LibaioEngine {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        let block = &mut self.blocks[usize::from(slot)];
        *block = ControlBlock {
            data: u64::from(slot),
            opcode: match access.direction {
                Direction::Read => PREAD,
                Direction::Write => PWRITE,
            },
            file: self.file.cast_unsigned(),
            memory: self.buffers.slot(0, slot).as_ptr().addr() as u64,
            count: u64::from(self.block),
            offset: i64::try_from(access.offset).expect("a place in a file"),
            ..ControlBlock::default()
        };
        self.queued.push(ptr::from_mut(block));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        Ok(()) // `wait` submits.
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.submit_queued().map_err(|error| LoadError::set_up("submit to Linux AIO", error))?;
        let got = self.get_events().map_err(|error| LoadError::set_up("wait for AIO", error))?;
        for event in &self.events[..got] {
            let slot = u16::try_from(event.data).expect("submit stored a slot");
            ended.push(Ended { slot, outcome: outcome(event.result, self.block) });
        }
        Ok(())
    }
}

impl Drop for LibaioEngine {
    fn drop(&mut self) {
        // SAFETY: destroys our own context once, and waits for all that is in flight.
        let destroyed = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
        debug_assert_eq!(destroyed, 0, "destroying our own context cannot fail");
    }
}
