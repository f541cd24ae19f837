//! What a load does: operation, block size, jobs, iodepth and the offsets that follow from them.
//!
//! Invariants: a `Shape` and a `Workload` exist only with values both generators can run; the
//! offsets of a job depend on seed and job number alone, so every subject of a block sees the same
//! requests.
//! Limits: iodepth is at most 256 because a request takes three descriptors of a ring of at most
//! 1024 (`client`); jobs and block size bound the memory of a run. Jobs are at most 1024, which only
//! `fio` and `host` can run: a client needs a queue for each, and there are `client::QUEUES_MAX`.

use std::fmt;
use std::str::FromStr;

use crate::Random;

/// The most jobs a load may have: as many threads as a host starts without being asked about its
/// limits. A client takes fewer, see [`crate::client::QUEUES_MAX`].
pub const JOBS_MAX: u16 = 1024;
/// The most requests one job may have in flight.
pub const IODEPTH_MAX: u16 = 256;
/// The largest block.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// The most memory the buffers of one run may take.
pub(crate) const BUFFER_BYTES_MAX: u64 = 4 << 30;
const SECTOR_BYTES: u32 = 512;

/// Whether a request moves data from the disk or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pattern {
    /// Each request anywhere, independent of the others.
    Random,
    /// Each job from the start to the end of its slice, again and again.
    Sequential,
}

/// The kind of requests of a load, written as fio users write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pattern: Pattern,
    read_percent: u8,
}

impl Operation {
    /// The share of reads in percent: 100 for reads only, 0 for writes only.
    #[must_use]
    pub fn read_percent(self) -> u8 {
        self.read_percent
    }

    pub(crate) fn pattern(self) -> Pattern {
        self.pattern
    }

    /// True if any request of this operation changes the disk.
    #[must_use]
    pub fn writes(self) -> bool {
        self.read_percent < 100
    }

    const fn new(pattern: Pattern, read_percent: u8) -> Self {
        Self { pattern, read_percent }
    }
}

/// A name that is no operation.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown operation '{0}': valid are randread, randwrite, read, write, and random mixes such as \
     80/20 (80 % reads, 20 % writes)"
)]
pub struct UnknownOperation(String);

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let operation = match text {
            "randread" => Some(Self::new(Pattern::Random, 100)),
            "randwrite" => Some(Self::new(Pattern::Random, 0)),
            "read" => Some(Self::new(Pattern::Sequential, 100)),
            "write" => Some(Self::new(Pattern::Sequential, 0)),
            mix => mix_percent(mix).map(|percent| Self::new(Pattern::Random, percent)),
        };
        operation.ok_or_else(|| UnknownOperation(text.to_owned()))
    }
}

/// The read share of a mix such as `80/20`; 100/0 and 0/100 have names of their own.
fn mix_percent(text: &str) -> Option<u8> {
    let (reads, writes) = text.split_once('/')?;
    let (reads, writes) = (reads.parse::<u8>().ok()?, writes.parse::<u8>().ok()?);
    let complete = reads.checked_add(writes) == Some(100);
    (complete && reads > 0 && writes > 0).then_some(reads)
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pattern, self.read_percent) {
            (Pattern::Random, 100) => f.write_str("randread"),
            (Pattern::Random, 0) => f.write_str("randwrite"),
            (Pattern::Sequential, 100) => f.write_str("read"),
            (Pattern::Sequential, 0) => f.write_str("write"),
            (Pattern::Random | Pattern::Sequential, reads) => {
                write!(f, "{reads}/{}", 100 - reads)
            }
        }
    }
}

/// The size of a request in bytes: a multiple of 512, at most 16 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockBytes(u32);

impl BlockBytes {
    /// The size as a number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u64> for BlockBytes {
    type Error = ShapeError;

    fn try_from(bytes: u64) -> Result<Self, Self::Error> {
        u32::try_from(bytes)
            .ok()
            .filter(|&b| b > 0 && b <= BLOCK_BYTES_MAX && b.is_multiple_of(SECTOR_BYTES))
            .map(Self)
            .ok_or(ShapeError::Block(bytes))
    }
}

/// A load that no generator can run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShapeError {
    /// The block size does not suit a disk.
    #[error("block size {0}: must be a multiple of 512 and at most 16M")]
    Block(u64),
    /// Too many jobs, or none.
    #[error("jobs {0}: must be between 1 and {JOBS_MAX}")]
    Jobs(u16),
    /// Too many requests in flight, or none.
    #[error("iodepth {0}: must be between 1 and {IODEPTH_MAX}")]
    Iodepth(u16),
    /// The buffers would not fit into memory.
    #[error(
        "{jobs} jobs × iodepth {iodepth} × {block} bytes need more than 4 GiB of buffers: use fewer"
    )]
    Memory {
        /// The number of jobs asked for.
        jobs: u16,
        /// The requests in flight per job asked for.
        iodepth: u16,
        /// The block size asked for.
        block: u32,
    },
    /// Not every job would have a block of its own.
    #[error(
        "a disk of {disk_bytes} bytes is too small for {jobs} jobs with blocks of {block} bytes"
    )]
    Disk {
        /// The size of the disk.
        disk_bytes: u64,
        /// The number of jobs asked for.
        jobs: u16,
        /// The block size asked for.
        block: u32,
    },
}

/// Operation, block size, jobs and iodepth: what a report calls a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    operation: Operation,
    block: BlockBytes,
    jobs: u16,
    iodepth: u16,
}

impl Shape {
    /// Checks the bounds of each value and of the memory they need together.
    ///
    /// # Errors
    /// Names the value that is out of its bounds.
    pub fn new(
        operation: Operation,
        block: BlockBytes,
        jobs: u16,
        iodepth: u16,
    ) -> Result<Self, ShapeError> {
        if jobs == 0 || jobs > JOBS_MAX {
            return Err(ShapeError::Jobs(jobs));
        }
        if iodepth == 0 || iodepth > IODEPTH_MAX {
            return Err(ShapeError::Iodepth(iodepth));
        }
        let slots = u64::from(jobs) * u64::from(iodepth);
        if slots * u64::from(block.get()) > BUFFER_BYTES_MAX {
            return Err(ShapeError::Memory { jobs, iodepth, block: block.get() });
        }
        Ok(Self { operation, block, jobs, iodepth })
    }

    /// What the requests do.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The size of each request.
    #[must_use]
    pub fn block(&self) -> BlockBytes {
        self.block
    }

    /// The number of threads; each has its own queue, if the load is a client.
    #[must_use]
    pub fn jobs(&self) -> u16 {
        self.jobs
    }

    /// The requests each job keeps in flight.
    #[must_use]
    pub fn iodepth(&self) -> u16 {
        self.iodepth
    }
}

/// A shape on a disk of a known size, with the seed of its offsets.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    shape: Shape,
    disk_bytes: u64,
    seed: u64,
}

impl Workload {
    /// Checks that every job has at least one block of its own.
    ///
    /// # Errors
    /// If the disk is too small.
    pub fn new(shape: Shape, disk_bytes: u64, seed: u64) -> Result<Self, ShapeError> {
        let block = shape.block.get();
        if disk_bytes / u64::from(block) < u64::from(shape.jobs) {
            return Err(ShapeError::Disk { disk_bytes, jobs: shape.jobs, block });
        }
        Ok(Self { shape, disk_bytes, seed })
    }

    /// The shape it was made of.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The size of the disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// What the offsets follow from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The bytes one job works on, in whole blocks: all of the disk for random requests; for
    /// sequential ones its own slice, and the slices of the jobs follow each other.
    pub(crate) fn slice_bytes(&self) -> u64 {
        let block = u64::from(self.shape.block.get());
        let blocks = self.disk_bytes / block;
        let count = match self.shape.operation.pattern {
            Pattern::Random => blocks,
            Pattern::Sequential => blocks / u64::from(self.shape.jobs),
        };
        count * block
    }

    /// The requests of one job, without end.
    pub(crate) fn accesses(&self, job: u16) -> Accesses {
        let block = u64::from(self.shape.block.get());
        let count = self.slice_bytes() / block;
        let first = match self.shape.operation.pattern {
            Pattern::Random => 0,
            Pattern::Sequential => count * u64::from(job),
        };
        Accesses {
            random: Random::stream(self.seed, u64::from(job)),
            operation: self.shape.operation,
            block,
            first,
            count,
            next: 0,
        }
    }
}

/// One request: what and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
}

/// The endless sequence of requests of one job.
#[derive(Debug)]
pub(crate) struct Accesses {
    random: Random,
    operation: Operation,
    block: u64,
    first: u64,
    count: u64,
    next: u64,
}

impl Accesses {
    pub(crate) fn next(&mut self) -> Access {
        let index = match self.operation.pattern {
            Pattern::Random => self.random.below(self.count),
            Pattern::Sequential => {
                let index = self.next;
                self.next = (index + 1) % self.count;
                index
            }
        };
        Access { direction: self.direction(), offset: (self.first + index) * self.block }
    }

    fn direction(&mut self) -> Direction {
        let reads = match self.operation.read_percent {
            0 => false,
            100 => true,
            percent => self.random.below(100) < u64::from(percent),
        };
        if reads { Direction::Read } else { Direction::Write }
    }
}

#[cfg(test)]
mod tests;
