//! Persistent bitmaps: found, and marked as not up to date before the disk is changed.
//!
//! Where it stands: when an image is opened for writing, before the first change. Where somebody records changes, all are in
//! memory by then (`stored_bitmaps`), and are marked. Where nobody does, a bitmap that has to reflect all changes (flag `auto`) is marked `in_use`,
//! durably: whoever finds that takes it for inconsistent, as if QEMU had died with it. One that is
//! disabled need not reflect any changes and stays valid. So the extension stays consistent, its
//! autoclear bit stays set, and nobody loses track of its clusters. The specification is
//! `docs/interop/qcow2.rst`, "Bitmaps extension", "Bitmap directory" and "Bitmap table".
//!
//! Invariants: each flag is changed for itself in a sector of its own, so a loss of power leaves some of
//! the bitmaps marked and harms none.
//! Limits: the directory's size, which the header bounds; tables of [`TABLE_ENTRIES_MAX`].

use block::HostMemory;

use crate::header::BitmapsExtension;
use crate::table_reader::{MetadataError, TableReader, number, wrong};

/// The longest bitmap table, as in QEMU: 2^27 entries.
const TABLE_ENTRIES_MAX: u64 = 1 << 27;

/// It was not saved correctly and may be inconsistent.
const IN_USE: u32 = 1;
/// It must reflect all changes of the disk.
const AUTO: u32 = 2;
/// The only type of bitmaps that there is.
const KIND: u8 = 1;
/// All flags that there are.
const FLAGS: u32 = 7;

const DIRECTORY: &str = "the bitmap directory";
const TABLE: &str = "a bitmap table";

/// A persistent dirty bitmap, as the bitmap directory describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bitmap {
    pub(crate) table_offset: u64,
    pub(crate) table_entries: u64,
    pub(crate) name: String,
    pub(crate) granularity_bits: u8,
    flags: u32,
    /// Where the entry is in the directory.
    at: u64,
    /// As it is there.
    entry: Vec<u8>,
    has_more: bool,
}

impl Bitmap {
    /// Whether its bits are what its last user has left, and nothing is there beside them.
    pub(crate) fn is_consistent(&self) -> bool {
        self.flags & IN_USE == 0 && !self.has_more
    }

    /// Whether it is to record changes.
    pub(crate) fn is_recording(&self) -> bool {
        self.flags & AUTO != 0
    }

    /// Its entry as it stays if nobody knows its bits.
    pub(crate) fn inconsistent_entry(&self) -> Vec<u8> {
        let mut entry = self.entry.clone();
        entry[12..16].copy_from_slice(&(self.flags | IN_USE).to_be_bytes());
        entry
    }
}

/// An entry of the directory, of a bitmap that is consistent.
pub(crate) fn entry(
    name: &str,
    granularity_bits: u8,
    is_recording: bool,
    (table_offset, table_entries): (u64, u32),
) -> Vec<u8> {
    let mut entry = table_offset.to_be_bytes().to_vec();
    entry.extend(table_entries.to_be_bytes());
    entry.extend((if is_recording { AUTO } else { 0 }).to_be_bytes());
    let count = u16::try_from(name.len()).expect("a name has 1023 bytes at most");
    entry.extend([KIND, granularity_bits]);
    entry.extend(count.to_be_bytes());
    entry.extend(0_u32.to_be_bytes());
    entry.extend(name.as_bytes());
    entry.resize(entry.len().next_multiple_of(8), 0);
    entry
}

/// Which bitmaps are marked in an image that is going to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkedBitmaps {
    /// Those that would have to reflect what is written: nobody records that.
    MissingChanges,
    /// All: they are in memory, and are stored when the image is closed.
    InMemory,
}

/// Reads the directory, if there is one that is consistent with the data.
pub(crate) async fn read(tables: &TableReader<'_>) -> Result<Vec<Bitmap>, MetadataError> {
    let Some(extension) = tables.header.bitmaps else { return Ok(Vec::new()) };
    let BitmapsExtension { directory_offset: offset, directory_bytes: bytes, .. } = extension;
    tables.check_place(DIRECTORY, offset, bytes)?;
    let directory = tables.read(DIRECTORY, offset, bytes).await?;
    let bitmaps =
        parse(&directory, extension.count).ok_or_else(|| wrong(DIRECTORY, offset, "is not one"))?;
    for bitmap in &bitmaps {
        tables.check_place(TABLE, bitmap.table_offset, bitmap.table_entries * 8)?;
        if bitmap.table_offset == 0 {
            return Err(wrong(TABLE, 0, "is where the header is"));
        }
    }
    Ok(bitmaps)
}

fn parse(directory: &[u8], count: u32) -> Option<Vec<Bitmap>> {
    let mut bitmaps = Vec::new();
    let mut at = 0;
    while at < directory.len() {
        let entry = &directory[at..];
        if entry.len() < 24 {
            return None;
        }
        let table_entries = number::<4>(entry, 8);
        let flags = u32::try_from(number::<4>(entry, 12)).expect("4 bytes");
        let (kind, name, extra) = (entry[16], number::<2>(entry, 18), number::<4>(entry, 20));
        let is_good = kind == KIND && flags & !FLAGS == 0 && name > 0 && entry[17] < 64;
        if !is_good || !(1..=TABLE_ENTRIES_MAX).contains(&table_entries) {
            return None;
        }
        let bytes = usize::try_from((24 + name + extra).next_multiple_of(8)).ok()?;
        let start = usize::try_from(24 + extra).ok()?;
        let name = entry.get(start..start + usize::try_from(name).ok()?)?;
        bitmaps.push(Bitmap {
            table_offset: number::<8>(entry, 0),
            table_entries,
            name: String::from_utf8_lossy(name).into_owned(),
            granularity_bits: entry[17],
            flags,
            at: at as u64,
            entry: entry.get(..bytes)?.to_vec(),
            has_more: extra > 0,
        });
        at += bytes;
    }
    (bitmaps.len() == count as usize).then_some(bitmaps)
}

/// Marks bitmaps before the image is written. Durable when it returns.
pub(crate) async fn mark_in_use(
    tables: &TableReader<'_>,
    which: MarkedBitmaps,
) -> Result<(), MetadataError> {
    let Some(extension) = tables.header.bitmaps else { return Ok(()) };
    let bitmaps = read(tables).await?;
    let must_mark = |bitmap: &&Bitmap| match which {
        MarkedBitmaps::MissingChanges => bitmap.flags & (AUTO | IN_USE) == AUTO,
        MarkedBitmaps::InMemory => bitmap.flags & IN_USE == 0,
    };
    let mut marked = 0;
    let block = tables.storage.alignment().max(512);
    for bitmap in bitmaps.iter().filter(must_mark) {
        let flags_at = extension.directory_offset + bitmap.at + 12;
        let start = flags_at - flags_at % block;
        let end = (start + block).min(tables.file_bytes);
        let memory = tables.storage.read(start..end).await?;
        let mut bytes = memory.to_vec();
        let place = usize::try_from(flags_at - start).expect("inside a block");
        bytes[place..place + 4].copy_from_slice(&(bitmap.flags | IN_USE).to_be_bytes());
        tables.storage.write(start, HostMemory::of(&bytes)).await?;
        marked += 1;
    }
    if marked > 0 {
        tables.storage.sync().await?;
        if which == MarkedBitmaps::MissingChanges {
            tracing::info!(
                "{marked} bitmaps of the image are in use from now on: they miss changes"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(flags: u32, name: &[u8], extra: &[u8]) -> Vec<u8> {
        let mut entry = 0x5_0000_u64.to_be_bytes().to_vec();
        entry.extend(1_u32.to_be_bytes());
        entry.extend(flags.to_be_bytes());
        entry.extend([1, 16, 0, u8::try_from(name.len()).unwrap()]);
        entry.extend(u32::try_from(extra.len()).unwrap().to_be_bytes());
        entry.extend(extra);
        entry.extend(name);
        entry.resize(entry.len().next_multiple_of(8), 0);
        entry
    }

    #[test]
    fn a_directory_has_as_many_entries_as_the_header_says() {
        let two = [entry(AUTO, b"first", b""), entry(0, b"b", b"extra")].concat();
        let bitmaps = parse(&two, 2).unwrap();
        assert_eq!((bitmaps[0].at, bitmaps[0].flags), (0, AUTO));
        assert_eq!((bitmaps[1].at, bitmaps[1].table_offset), (32, 0x5_0000));
        assert_eq!((parse(&two, 1), parse(&two, 3)), (None, None));
        for cut in [1, 20, 33, 60] {
            assert_eq!(parse(&two[..cut], 2), None, "{cut}");
        }
    }

    #[test]
    fn an_entry_that_the_format_does_not_allow_is_refused() {
        for (at, value) in
            [(8, 255), (11, 0), (12, 1), (15, 8), (16, 2), (17, 64), (19, 0), (20, 1)]
        {
            let mut bytes = entry(AUTO, b"name", b"");
            assert!(parse(&bytes, 1).is_some());
            bytes[at] = value;
            assert_eq!(parse(&bytes, 1), None, "{value} at {at}");
        }
    }
}
