//! A disk as libblkio sees it: the library that QEMU, fio and others use for vhost-user disks,
//! with its own request backlog and completion logic above the driver of [`crate::client`].

#![expect(unsafe_code, reason = "libblkio hands out its memory as an address")]

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};

/// The longest that a request may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A connected disk with its queues and one region of memory.
pub struct LibblkioDisk {
    queues: Vec<Blkioq>,
    memory: MemoryRegion,
    capacity_bytes: u64,
    _blkio: Blkio,
}

fn failed(error: &blkio::Error) -> anyhow::Error {
    anyhow!("libblkio: {} ({:?})", error.message(), error.errno())
}

impl LibblkioDisk {
    /// Connects and starts that many queues.
    pub fn connect(socket: &Path, queues: u32, memory_bytes: usize) -> Result<Self> {
        let path = socket.to_str().context("a socket path in UTF-8")?;
        let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(|e| failed(&e))?;
        blkio.set_str("path", path).map_err(|e| failed(&e))?;
        blkio.connect().map_err(|e| failed(&e))?;
        blkio.set_i32("num-queues", i32::try_from(queues)?).map_err(|e| failed(&e))?;
        let started = blkio.start().map_err(|e| failed(&e))?;
        let memory = blkio.alloc_mem_region(memory_bytes).map_err(|e| failed(&e))?;
        blkio.map_mem_region(&memory).map_err(|e| failed(&e))?;
        let capacity_bytes = blkio.get_u64("capacity").map_err(|e| failed(&e))?;
        Ok(Self { queues: started.queues, memory, capacity_bytes, _blkio: blkio })
    }

    /// The disk's size.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Writes bytes and waits.
    pub fn write(&mut self, queue: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let memory = self.memory_for(bytes.len())?;
        // SAFETY: `memory` has room for the bytes; no request is in flight.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
        self.queues[queue].write(offset, memory, bytes.len(), 1, ReqFlags::empty());
        self.finish(queue)
    }

    /// Reads bytes and waits.
    pub fn read(&mut self, queue: usize, offset: u64, count: usize) -> Result<Vec<u8>> {
        let memory = self.memory_for(count)?;
        self.queues[queue].read(offset, memory, count, 1, ReqFlags::empty());
        self.finish(queue)?;
        // SAFETY: `memory` has as many bytes; no request is in flight.
        Ok(unsafe { std::slice::from_raw_parts(memory, count) }.to_vec())
    }

    /// Zeroes bytes and waits.
    pub fn write_zeroes(&mut self, queue: usize, offset: u64, count: u64) -> Result<()> {
        self.queues[queue].write_zeroes(offset, count, 1, ReqFlags::empty());
        self.finish(queue)
    }

    /// Flushes and waits.
    pub fn flush(&mut self, queue: usize) -> Result<()> {
        self.queues[queue].flush(1, ReqFlags::empty());
        self.finish(queue)
    }

    fn memory_for(&self, count: usize) -> Result<*mut u8> {
        ensure!(count <= self.memory.len, "{count} bytes do not fit into the region");
        Ok(std::ptr::with_exposed_provenance_mut(self.memory.addr))
    }

    fn finish(&mut self, queue: usize) -> Result<()> {
        let mut completions = [MaybeUninit::<Completion>::uninit()];
        let mut limit = LIMIT;
        let count = self.queues[queue]
            .do_io(&mut completions, 1, Some(&mut limit), None)
            .map_err(|e| failed(&e))?;
        ensure!(count == 1, "{count} completions of one request");
        // SAFETY: libblkio has filled as many completions as it returned.
        let ret = unsafe { completions[0].assume_init_ref() }.ret;
        ensure!(ret == 0, "request failed with {ret}");
        Ok(())
    }
}

impl std::fmt::Debug for LibblkioDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibblkioDisk").field("capacity_bytes", &self.capacity_bytes).finish()
    }
}
