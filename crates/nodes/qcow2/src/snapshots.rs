//! The table of internal snapshots: where their L1 tables are, and what they are called.
//!
//! Where it stands: read when refcounts are made anew, when a node is made or claimed, and when a snapshot is made or deleted
//! (`snapshot_change`). What a snapshot holds is otherwise protected by its refcounts: an entry without the flag "copied" is
//! never written in place. The specification is `docs/interop/qcow2.rst`, "Snapshots".
//!
//! Limits: [`TABLE_BYTES_MAX`], and the number of snapshots that a header may say. Of identities and names that are shown
//! [`SHOWN_BYTES_MAX`] are kept.

use std::time::Duration;

use block::SnapshotInfo;

use crate::table_reader::{MetadataError, TableReader, number, wrong};

/// The largest table of snapshots, as in QEMU: 1024 bytes for each of 65536.
pub(crate) const TABLE_BYTES_MAX: usize = 64 << 20;

/// The longest extra data of a snapshot, as in QEMU.
const EXTRA_BYTES_MAX: u64 = 1024;

/// The largest L1 table of a snapshot, as in QEMU: 32 MiB.
const L1_BYTES_MAX: u64 = 32 << 20;

/// How much of an identity and of a name QEMU shows.
const SHOWN_BYTES_MAX: usize = 255;

/// How much of the table is read at a time.
const STEP: u64 = 64 << 10;

/// How long an entry is before its extra data.
const FIXED_BYTES: usize = 40;

/// The extra data of a new entry: the size of the state of a machine, that of the disk, the count of instructions.
const EXTRA_BYTES: usize = 24;

const TABLE: &str = "the snapshot table";

/// The snapshot table of an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotTable {
    /// How long the table is.
    pub(crate) table_bytes: u64,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// An internal snapshot: where its L1 table is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) l1_offset: u64,
    pub(crate) l1_entries: u64,
}

/// A snapshot with its entry as it stands in the table.
#[derive(Debug)]
pub(crate) struct SnapshotEntry {
    pub(crate) place: Snapshot,
    pub(crate) info: SnapshotInfo,
    pub(crate) bytes: Vec<u8>,
}

/// Reads the table.
pub(crate) async fn read(tables: &TableReader<'_>) -> Result<SnapshotTable, MetadataError> {
    let mut found = SnapshotTable::default();
    found.table_bytes = for_entries(tables, |snapshot, _| found.snapshots.push(snapshot)).await?;
    Ok(found)
}

/// Reads what is shown of all snapshots.
pub(crate) async fn list(tables: &TableReader<'_>) -> Result<Vec<SnapshotInfo>, MetadataError> {
    let mut found = Vec::new();
    for_entries(tables, |_, bytes| found.push(info(bytes))).await?;
    Ok(found)
}

/// Reads all entries.
pub(crate) async fn entries(tables: &TableReader<'_>) -> Result<Vec<SnapshotEntry>, MetadataError> {
    let mut found = Vec::new();
    let keep = |place, bytes: &[u8]| {
        found.push(SnapshotEntry { place, info: info(bytes), bytes: bytes.to_vec() });
    };
    for_entries(tables, keep).await?;
    Ok(found)
}

/// Calls this for each snapshot, with its entry; how long the table is.
async fn for_entries(
    tables: &TableReader<'_>,
    mut each: impl FnMut(Snapshot, &[u8]),
) -> Result<u64, MetadataError> {
    let header = tables.header;
    let (mut bytes, mut at) = (Vec::new(), 0);
    let mut left = header.snapshots;
    while left > 0 {
        match entry(&bytes[at..])? {
            Some((snapshot, count)) => {
                let (offset, entries) = (snapshot.l1_offset, snapshot.l1_entries);
                if entries * 8 > L1_BYTES_MAX {
                    return Err(wrong("the L1 table of a snapshot", offset, "is too large"));
                }
                tables.check_place("the L1 table of a snapshot", offset, entries * 8)?;
                each(snapshot, &bytes[at..at + count]);
                at += count;
                left -= 1;
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
    Ok(at as u64)
}

/// The entry at the beginning of these bytes and how long it is; `None` if there are too few of them.
fn entry(bytes: &[u8]) -> Result<Option<(Snapshot, usize)>, MetadataError> {
    if bytes.len() < FIXED_BYTES {
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

/// What an entry that was found to be whole says.
fn info(entry: &[u8]) -> SnapshotInfo {
    let length = |at| usize::try_from(number::<2>(entry, at)).expect("2 bytes");
    let extra = usize::try_from(number::<4>(entry, 36)).expect("at most 1024");
    let (id, name) = (FIXED_BYTES + extra, FIXED_BYTES + extra + length(12));
    let text = |start: usize, count: usize| {
        let text = &entry[start..start + count.min(SHOWN_BYTES_MAX)];
        String::from_utf8_lossy(text).into_owned()
    };
    let has = |bytes: usize| extra >= bytes;
    let nanoseconds = u32::try_from(number::<4>(entry, 20)).expect("4 bytes");
    SnapshotInfo {
        id: text(id, length(12)),
        name: text(name, length(14)),
        state_bytes: if has(8) { number::<8>(entry, 40) } else { number::<4>(entry, 32) },
        date: Duration::from_secs(number::<4>(entry, 16))
            + Duration::from_nanos(nanoseconds.into()),
        clock: Duration::from_nanos(number::<8>(entry, 24)),
        instructions: has(EXTRA_BYTES)
            .then(|| number::<8>(entry, 56))
            .filter(|count| *count != u64::MAX),
    }
}

/// The entry of a new snapshot of a disk of that size.
pub(crate) fn new_entry(place: &Snapshot, info: &SnapshotInfo, disk_bytes: u64) -> Vec<u8> {
    let half = |count: usize| u16::try_from(count).expect("identities and names are short");
    let seconds = u32::try_from(info.date.as_secs()).unwrap_or(u32::MAX);
    let entries = u32::try_from(place.l1_entries).expect("an L1 table has at most 32 MiB");
    let clock = u64::try_from(info.clock.as_nanos()).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    bytes.extend(place.l1_offset.to_be_bytes());
    bytes.extend(entries.to_be_bytes());
    bytes.extend(half(info.id.len()).to_be_bytes());
    bytes.extend(half(info.name.len()).to_be_bytes());
    bytes.extend(seconds.to_be_bytes());
    bytes.extend(info.date.subsec_nanos().to_be_bytes());
    bytes.extend(clock.to_be_bytes());
    bytes.extend(u32::try_from(info.state_bytes).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(u32::try_from(EXTRA_BYTES).expect("24").to_be_bytes());
    bytes.extend(info.state_bytes.to_be_bytes());
    bytes.extend(disk_bytes.to_be_bytes());
    bytes.extend(info.instructions.unwrap_or(u64::MAX).to_be_bytes());
    bytes.extend(info.id.as_bytes());
    bytes.extend(info.name.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// The identity that QEMU gives to the next snapshot: one more than the largest number.
pub(crate) fn next_id<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let number = |id: &str| {
        let digits = id.bytes().take_while(u8::is_ascii_digit);
        digits.fold(0_u64, |value, digit| {
            value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
        })
    };
    ids.map(number).max().unwrap_or(0).wrapping_add(1).to_string()
}

/// A name as QEMU keeps it: as much of it as fits.
pub(crate) fn kept_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(SHOWN_BYTES_MAX)]
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

    #[test]
    fn a_new_entry_says_what_it_was_told() {
        let place = Snapshot { l1_offset: 0x5_0000, l1_entries: 7 };
        for (state_bytes, instructions) in [(0, None), (1 << 40, Some(12))] {
            let info_of_it = SnapshotInfo {
                id: "12".to_owned(),
                name: "before the upgrade".to_owned(),
                state_bytes,
                date: Duration::new(1_795_766_352, 788_193_000),
                clock: Duration::from_nanos(77),
                instructions,
            };
            let bytes = new_entry(&place, &info_of_it, 1 << 30);
            assert_eq!(entry(&bytes), Ok(Some((place.clone(), bytes.len()))));
            assert_eq!((info(&bytes), number::<8>(&bytes, 48)), (info_of_it, 1 << 30));
        }
    }

    #[test]
    fn an_old_entry_has_less() {
        let mut bytes = bytes(1, 1, 0);
        bytes[35] = 9;
        bytes.extend(b"7n\0\0\0\0\0\0");
        let found = info(&bytes);
        assert_eq!((&*found.id, &*found.name, found.state_bytes), ("7", "n", 9));
        assert_eq!(found.instructions, None);
    }

    #[test]
    fn identities_are_numbers_that_rise() {
        let next = |ids: &[&str]| next_id(ids.iter().copied());
        assert_eq!((&*next(&[]), &*next(&["3", "1"]), &*next(&["x", "5y"])), ("1", "4", "6"));
        assert_eq!(next(&["99999999999999999999"]), "0");
    }

    #[test]
    fn a_name_ends_between_characters() {
        let name = "ä".repeat(200);
        assert_eq!((kept_name(&name).len(), kept_name("short")), (254, "short"));
    }
}
