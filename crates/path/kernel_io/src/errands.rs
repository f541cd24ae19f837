//! Errands of formats on threads that own no ring: opening an image, flushing it, closing it.
//!
//! Where it stands: the same task that runs on an iothread submits its errands here, and each is over
//! when the call returns.
//!
//! Invariants: what is staged for alignment never loses the bytes of others: a change of a part of a block
//! holds its range, as on iothreads. Behind the end of a file are zeroes. A file that another process owns
//! is not changed.
//! Threads: blocks, also while others sync or change the same range: for control threads.
//! Limits: [`STAGE_BYTES`] of memory besides the errand's, [`RETRIES_MAX`] attempts after EINTR or EAGAIN.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::Waker;

use block::{
    Buffers, ByteOffset, Durability, Errand, ErrandRunner, FailKind, FileId, HostMemory, Operation,
    Outcome, Owner, Piece, RangeGuard, StatusRuns, Target, Unmap,
};
use rustix::io::Errno;

use crate::calls::change;
use crate::judgement::RETRIES_MAX;
use crate::space::{Space, Step};
use crate::{Allocation, FileExtent, FileTable, IoFailure, Notifier, OpenFile};

/// The most bytes of one call.
const STAGE_BYTES: u64 = 256 << 10;

impl ErrandRunner for FileTable {
    fn run(&self, mut errand: Errand) {
        let mut memory = errand.memory();
        let result = carry_out(self, errand.operation(), errand.pieces(), &mut memory);
        errand.finish(match result {
            Ok(()) => Outcome::Done,
            Err(kind) => Outcome::Failed(kind),
        });
    }
}

fn carry_out(
    table: &FileTable,
    operation: Operation,
    pieces: &[Piece],
    memory: &mut Buffers,
) -> Result<(), FailKind> {
    let mut touched: Vec<FileId> = Vec::new();
    let mut runs = StatusRuns::default();
    for piece in pieces {
        match (&piece.target, operation) {
            (target, Operation::Status(_)) => {
                tell_runs(table, piece, target, &mut runs);
            }
            (Target::Nothing | Target::Status(_), _) => {}
            (Target::Memory { .. } | Target::Channel { .. }, _) => {
                panic!("errands have files alone")
            }
            (Target::Zeroes, Operation::Read(_)) => {
                memory.zero(in_memory(piece.skip), in_memory(piece.count.0));
            }
            (
                Target::Zeroes,
                Operation::Write(..)
                | Operation::Discard(..)
                | Operation::WriteZeroes(..)
                | Operation::Flush,
            ) => {}
            (&Target::File { file, offset }, _) => {
                if !touched.contains(&file) {
                    touched.push(file);
                }
                let open = table.get(file);
                if operation.is_change() && open.medium().owner() == Owner::Other {
                    let (path, name) = (open.path().display(), operation.name());
                    tracing::error!("disk {path}: {name} refused: another process owns the image");
                    return Err(FailKind::Io);
                }
                let (skip, count) = (piece.skip, piece.count.0);
                Part { file: &open, at: offset.0, skip, count }
                    .carry_out(operation, memory)
                    .map_err(|failure| tell(&open, operation, failure))?;
            }
        }
    }
    if let Operation::Status(_) = operation {
        runs.write(memory)?;
    }
    if operation == Operation::Flush || operation.durability() == Durability::Stable {
        for file in touched {
            let open = table.get(file);
            open.sync().map_err(|error| {
                let (path, name) = (open.path().display(), operation.name());
                tracing::warn!("disk {path}: {name} cannot be made durable: {error}");
                FailKind::Io
            })?;
        }
    }
    Ok(())
}

/// Adds what the bytes of a piece are.
fn tell_runs(table: &FileTable, piece: &Piece, target: &Target, runs: &mut StatusRuns) {
    let &Target::File { file, offset } = target else {
        return runs.add(piece.skip, piece.count, target.status());
    };
    let open = table.get(file);
    let mut done = 0;
    while done < piece.count.0 {
        let place = ByteOffset(offset.0 + done);
        let found = FileExtent::find(open.as_fd(), place, piece.count.0 - done);
        runs.add(piece.skip + done, found.count, found.status());
        done += found.count.0;
    }
}

/// Says what failed. Whoever runs errands here does so when a user changes something, not for each request
/// of a guest.
fn tell(file: &OpenFile, operation: Operation, failure: IoFailure) -> FailKind {
    let (path, name) = (file.path().display(), operation.name());
    match failure {
        IoFailure::Errno { offset, errno } => {
            tracing::warn!("disk {path}: {name} failed: error at byte {offset}: {errno}");
        }
        end @ IoFailure::EndOfFile { .. } => tracing::warn!("disk {path}: {name} failed: {end}"),
    }
    failure.kind()
}

/// A run of bytes in a file, and its place in the errand's memory.
struct Part<'a> {
    file: &'a OpenFile,
    at: u64,
    skip: u64,
    count: u64,
}

/// What becomes of the bytes of a part.
enum Transfer<'a> {
    Read(&'a mut Buffers),
    Write(&'a Buffers),
    Zero,
}

impl Part<'_> {
    fn carry_out(&self, operation: Operation, memory: &mut Buffers) -> Result<(), IoFailure> {
        if self.count == 0 {
            return Ok(());
        }
        match operation {
            Operation::Read(_) => self.transfer(Transfer::Read(memory)),
            Operation::Write(..) => {
                let _held = self.hold()?;
                self.transfer(Transfer::Write(memory))
            }
            Operation::Discard(..) => match self.allocate(Allocation::Discard) {
                // A hint that the file cannot take.
                Err(failure) if failure.is_unsupported() => Ok(()),
                result => result,
            },
            Operation::WriteZeroes(_, unmap, _) => {
                let _held = self.hold()?;
                self.zero(match unmap {
                    Unmap::Allowed => Allocation::PunchHole,
                    Unmap::Keep => Allocation::Zero,
                })
            }
            Operation::Flush => Ok(()),
            Operation::Status(_) => panic!("a status moves no bytes"),
        }
    }

    /// Waits until nobody else changes these blocks, if there are changes that rewrite more than they
    /// were asked to.
    fn hold(&self) -> Result<Option<RangeGuard>, IoFailure> {
        let medium = self.file.medium();
        let Some(blocks) = medium.blocks_to_lock(&(self.at..self.at + self.count)) else {
            return Ok(None);
        };
        let bell = Arc::new(Notifier::new().map_err(|error| self.failure_of(&error))?);
        let waker = Waker::from(Arc::clone(&bell));
        loop {
            if let Some(guard) = medium.ranges().try_lock(blocks.clone(), &waker) {
                return Ok(Some(guard));
            }
            bell.wait().map_err(|error| self.failure_of(&error))?;
        }
    }

    fn failure_of(&self, error: &std::io::Error) -> IoFailure {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        IoFailure::Errno { offset: ByteOffset(self.at), errno }
    }

    fn zero(&self, how: Allocation) -> Result<(), IoFailure> {
        let bytes = self.at..self.at + self.count;
        let whole = self.file.medium().allocation_blocks(&bytes);
        for end in [bytes.start..whole.start, whole.end..bytes.end] {
            self.part(end.start, end.end - end.start).transfer(Transfer::Zero)?;
        }
        match self.allocate(how) {
            Err(failure) if failure.is_unsupported() => {
                self.part(whole.start, whole.end - whole.start).transfer(Transfer::Zero)
            }
            result => result,
        }
    }

    fn part(&self, at: u64, count: u64) -> Self {
        Self { file: self.file, at, skip: 0, count }
    }

    /// Discards or zeroes the whole blocks inside.
    fn allocate(&self, goal: Allocation) -> Result<(), IoFailure> {
        let bytes = self.at..self.at + self.count;
        let whole = self.file.medium().allocation_blocks(&bytes);
        if whole.is_empty() {
            return Ok(());
        }
        let (missing, count) = (self.file.missing_ways(), whole.end - whole.start);
        let failed = |errno| IoFailure::Errno { offset: ByteOffset(whole.start), errno };
        let Ok(place) = libc::off_t::try_from(whole.start) else {
            return Err(failed(Errno::INVAL));
        };
        let mut space = Space::begin(goal, self.file.kind(), count, missing)
            .ok_or_else(|| failed(Errno::OPNOTSUPP))?;
        loop {
            let fd = self.file.as_fd().as_raw_fd();
            let result = again(|| match change(space, fd, place) {
                0 => Ok(()),
                errno => Err(Errno::from_raw_os_error(-errno)),
            });
            match space.proceed(result, missing) {
                Step::Next(next) => space = next,
                Step::Done => return Ok(()),
                Step::Unsupported => return Err(failed(Errno::OPNOTSUPP)),
                Step::Failed(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Moves the bytes chunk by chunk through memory that suits direct I/O.
    fn transfer(&self, mut transfer: Transfer<'_>) -> Result<(), IoFailure> {
        let alignment = u64::from(self.file.medium().alignments().offset);
        let most = self.count.saturating_add(2 * alignment).next_multiple_of(alignment);
        let mut stage = HostMemory::zeroed(in_memory(most.min(STAGE_BYTES)));
        let mut done = 0;
        while done < self.count {
            let at = self.at + done;
            let lead = at % alignment;
            let body = (self.count - done).min(stage.len() as u64 - lead);
            let blocks = &mut stage[..in_memory((lead + body).next_multiple_of(alignment))];
            let place = in_memory(lead)..in_memory(lead + body);
            let skip = in_memory(self.skip + done);
            let is_whole = place == (0..blocks.len());
            match &mut transfer {
                Transfer::Read(memory) => {
                    let found = self.read(blocks, at - lead)?;
                    blocks[found..].fill(0);
                    memory.copy_from(skip, &blocks[place]);
                }
                Transfer::Write(memory) => {
                    self.read_around(blocks, at - lead, is_whole)?;
                    memory.copy_to(skip, &mut blocks[place]);
                    self.write(blocks, at - lead)?;
                }
                Transfer::Zero => {
                    self.read_around(blocks, at - lead, is_whole)?;
                    blocks[place].fill(0);
                    self.write(blocks, at - lead)?;
                }
            }
            done += body;
        }
        Ok(())
    }

    /// Fills what a change of a part of these blocks leaves as it is.
    fn read_around(&self, blocks: &mut [u8], at: u64, is_whole: bool) -> Result<(), IoFailure> {
        if !is_whole {
            let found = self.read(blocks, at)?;
            blocks[found..].fill(0);
        }
        Ok(())
    }

    /// Reads up to the end of the file; says how much that was.
    fn read(&self, blocks: &mut [u8], at: u64) -> Result<usize, IoFailure> {
        let alignment = self.file.medium().alignments().offset as usize;
        let mut found = 0;
        while found < blocks.len() {
            let place = at + found as u64;
            let count = again(|| rustix::io::pread(self.file.as_fd(), &mut blocks[found..], place))
                .map_err(|errno| IoFailure::Errno { offset: ByteOffset(place), errno })?;
            found += count;
            // Direct I/O ends inside a block only where the file does.
            if count == 0 || !found.is_multiple_of(alignment) {
                break;
            }
        }
        Ok(found)
    }

    fn write(&self, blocks: &[u8], at: u64) -> Result<(), IoFailure> {
        let mut done = 0;
        while done < blocks.len() {
            let place = at + done as u64;
            let failed = |errno| IoFailure::Errno { offset: ByteOffset(place), errno };
            match again(|| rustix::io::pwrite(self.file.as_fd(), &blocks[done..], place)) {
                Ok(0) => return Err(failed(Errno::IO)),
                Ok(count) => done += count,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }
}

/// Repeats what only came at a bad moment.
fn again<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut retries = 0;
    loop {
        match attempt() {
            Err(Errno::INTR | Errno::AGAIN) if retries < RETRIES_MAX => retries += 1,
            result => return result,
        }
    }
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit host")
}
