//! What a status may tell: judged by what the disk may hold.
//!
//! Invariants checked: records follow each other from the first byte asked about, none is empty, neighbours differ, and
//! they do not go beyond the last byte. What is said to be zero may read as zeroes, and what reads leave as it is is
//! never said to be.

use anyhow::{Context, Result, ensure};
use block::{Extent, StatusRecord};

use super::history::{History, Moment};
use super::index;
use super::layout::Layout;
use super::stack::End;
use super::stamp::{SECTOR_BYTES, Stamp};

/// Judges what a status, which began then and ends now, has left in its memory.
pub(super) fn check(
    (layout, history): (&Layout, &History),
    (extent, begun): (Extent, Moment),
    memory: &[u8],
) -> Result<()> {
    let records: Vec<StatusRecord> = StatusRecord::read_all(memory).collect();
    let bytes = extent.bytes();
    ensure!(!records.is_empty(), "nothing is told");
    let mut at = bytes.start;
    for (place, StatusRecord { count, status }) in records.iter().enumerate() {
        let end = at + count.0;
        ensure!(end <= bytes.end, "{records:?} go beyond {extent:?}");
        let is_new = records[..place].last().is_none_or(|last| last.status != *status);
        ensure!(is_new, "neighbours are alike: {records:?}");
        // Those that are whole inside.
        let sectors = index(at).div_ceil(SECTOR_BYTES)..index(end) / SECTOR_BYTES;
        for sector in sectors.filter(|_| status.is_zero) {
            let judged = match layout.ends[sector] {
                End::File(..) => history.check(sector, begun, Stamp::ZEROES),
                End::Zeroes => Ok(()),
                End::Nothing => Err(anyhow::anyhow!("sector {sector} is nothing")),
            };
            judged.with_context(|| format!("{status:?} is told of bytes {at} to {end}"))?;
        }
        at = end;
    }
    Ok(())
}
