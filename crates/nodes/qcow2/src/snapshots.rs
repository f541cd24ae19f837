//! The table of internal snapshots: where their L1 tables are.
//!
//! Where it stands: read when refcounts are made anew. What a snapshot holds is otherwise protected by
//! its refcounts: an entry without the flag "copied" is never written in place. The specification is
//! `docs/interop/qcow2.rst`, "Snapshots".
//!
//! Limits: [`TABLE_BYTES_MAX`], and the number of snapshots that a header may say.

use crate::table_reader::{MetadataError, TableReader, number, wrong};

/// The largest table of snapshots, as in QEMU: 1024 bytes for each of 65536.
const TABLE_BYTES_MAX: usize = 64 << 20;

/// The longest extra data of a snapshot, as in QEMU.
const EXTRA_BYTES_MAX: u64 = 1024;

/// The largest L1 table of a snapshot, as in QEMU: 32 MiB.
const L1_BYTES_MAX: u64 = 32 << 20;

/// How much of the table is read at a time.
const STEP: u64 = 64 << 10;

const TABLE: &str = "the snapshot table";

/// The snapshot table of an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotTable {
    /// How long the table is.
    pub(crate) table_bytes: u64,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// An internal snapshot: where its L1 table is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u64,
}

/// Reads the table.
pub(crate) async fn read(tables: &TableReader<'_>) -> Result<SnapshotTable, MetadataError> {
    let header = tables.header;
    let mut found = SnapshotTable::default();
    let mut bytes = Vec::new();
    let mut at = 0;
    while found.snapshots.len() < header.snapshots as usize {
        match entry(&bytes[at..])? {
            Some((snapshot, count)) => {
                let (offset, entries) = (snapshot.l1_offset, snapshot.l1_entries);
                if entries * 8 > L1_BYTES_MAX {
                    return Err(wrong("the L1 table of a snapshot", offset, "is too large"));
                }
                tables.check_place("the L1 table of a snapshot", offset, entries * 8)?;
                found.snapshots.push(snapshot);
                at += count;
            }
            None if bytes.len() >= TABLE_BYTES_MAX => {
                return Err(wrong(TABLE, header.snapshots_offset, "is too large"));
            }
            None => {
                let start = header.snapshots_offset + bytes.len() as u64;
                let file_end = tables.file_bytes.next_multiple_of(tables.cluster_bytes());
                let count = STEP.min(file_end.saturating_sub(start));
                if count == 0 {
                    return Err(wrong(TABLE, header.snapshots_offset, "is outside the file"));
                }
                bytes.extend_from_slice(&tables.read(TABLE, start, count).await?);
            }
        }
    }
    found.table_bytes = at as u64;
    Ok(found)
}

/// The entry at the beginning of these bytes and how long it is; `None` if there are too few of them.
fn entry(bytes: &[u8]) -> Result<Option<(Snapshot, usize)>, MetadataError> {
    if bytes.len() < 40 {
        return Ok(None);
    }
    let (id, name, extra) =
        (number::<2>(bytes, 12), number::<2>(bytes, 14), number::<4>(bytes, 36));
    let l1_offset = number::<8>(bytes, 0);
    if extra > EXTRA_BYTES_MAX {
        return Err(wrong("the snapshot with the L1 table", l1_offset, "has too much extra data"));
    }
    let count = usize::try_from((40 + extra + id + name).next_multiple_of(8)).expect("132 KiB");
    let snapshot = Snapshot { l1_offset, l1_entries: number::<4>(bytes, 8) };
    Ok((bytes.len() >= count).then_some((snapshot, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(id: u8, name: u8, extra: u16) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[6] = 5;
        bytes[11] = 7;
        (bytes[13], bytes[15]) = (id, name);
        bytes[38..40].copy_from_slice(&extra.to_be_bytes());
        bytes
    }

    #[test]
    fn entries_are_as_long_as_their_parts_and_padded() {
        for (id, name, extra, expected) in [(1, 3, 16, 64), (0, 0, 0, 40), (1, 8, 24, 80)] {
            let mut entry_bytes = bytes(id, name, extra);
            assert_eq!(entry(&entry_bytes[..39]), Ok(None));
            entry_bytes.resize(expected, 0);
            let snapshot = Snapshot { l1_offset: 0x500, l1_entries: 7 };
            assert_eq!(entry(&entry_bytes), Ok(Some((snapshot, expected))));
            assert_eq!(entry(&entry_bytes[..expected - 1]), Ok(None));
        }
    }

    #[test]
    fn more_extra_data_than_qemu_takes_is_refused() {
        assert!(entry(&bytes(1, 1, 1025)).is_err());
        assert_eq!(entry(&bytes(1, 1, 1024)), Ok(None), "it may follow");
    }
}
