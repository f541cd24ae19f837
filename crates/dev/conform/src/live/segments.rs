//! Where the data of requests lie in the memory of a client: in segments of any size and place.
//!
//! Invariants: memory between the segments of a read must stay as it was.

use anyhow::{Result, ensure};
use block::Operation;
use testkit::conformance::workload::{CANARY, Request};
use testkit::memory::SharedMemory;
use testkit::rng::Rng;

/// Requests in flight of one client.
pub(crate) const SLOTS: usize = 8;
/// The longest request.
pub(crate) const REQUEST_SECTORS_MAX: u64 = 4096;
/// The most segments of a request.
pub(crate) const SEGMENTS_MAX: usize = 40;
/// The longest request, and what lies between its segments.
pub(crate) const SLOT_BYTES: usize = 4096 * 512 + (1 << 18);

const GAP_MAX: usize = 5000;

/// Cuts so many bytes into segments behind `start`: one that is aligned, whole sectors, or anything.
pub(crate) fn spread(start: usize, bytes: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let unit = match rng.below(4) {
        0 => return vec![(start, bytes)],
        1 => 512,
        _ => 1,
    };
    let (mut at, mut left, mut segments) = (start, bytes, Vec::new());
    while left > 0 {
        at += rng.index(GAP_MAX) / unit * unit;
        let is_last = segments.len() + 1 == SEGMENTS_MAX;
        let ceiling = (left / unit).min(1 << rng.below(18)).max(1);
        let count = if is_last { left } else { ((1 + rng.index(ceiling)) * unit).min(left) };
        segments.push((at, count));
        (at, left) = (at + count, left - count);
    }
    segments
}

/// Writes what the device is to read, and the canary wherever it may or must not write.
pub(crate) fn lay_out(memory: &SharedMemory, request: &Request, segments: &[(usize, usize)]) {
    let Some(((first, _), (last, count))) = segments.first().zip(segments.last()) else {
        return;
    };
    memory.fill(*first, last + count - first, CANARY);
    if let Operation::Write(..) = request.operation {
        let mut done = 0;
        for (at, count) in segments {
            memory.write(*at, &request.data[done..done + count]);
            done += count;
        }
    }
}

/// Takes in what a read has brought.
pub(crate) fn take_in(
    memory: &SharedMemory,
    request: &mut Request,
    segments: &[(usize, usize)],
) -> Result<()> {
    let (Operation::Read(_) | Operation::Status(_)) = request.operation else { return Ok(()) };
    let mut done = 0;
    for (at, count) in segments {
        memory.read_into(*at, &mut request.data[done..done + count]);
        done += count;
    }
    for pair in segments.windows(2) {
        let end = pair[0].0 + pair[0].1;
        let gap = memory.read(end, pair[1].0 - end);
        let same = gap.iter().all(|byte| *byte == CANARY);
        ensure!(same, "{:?} wrote between its segments", request.operation);
    }
    Ok(())
}
