//! Answers of very many pieces of all kinds are carried out over many turns, and whole.

use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    Answer, BatchPieces, ByteCount, ByteOffset, EofPolicy, FileId, HostMemory, LaneContext,
    LeafLane, Mapping, Piece, Target,
};
use disk::ReadContent;
use kernel_io::{Aio, FileTable, OpenFile, ReactorChoice};

use crate::guest::{Ask, BULKS, Guest};
use crate::lanes::{null_disk, with_lanes};
use crate::setup::{iothreads, on_both, place};

const STONE: usize = 512;

/// What a read of the mosaic gets: more stones than one go takes of each colour.
const BYTES: usize = 8192 * STONE;

/// Each so many neighbours have one colour; many of them are more than go to the kernel together.
const PATCH: usize = 700;

/// The file ends in the middle of the mosaic, and inside a stone.
const FILE_BYTES: usize = BYTES / 2 + 100;

/// A disk of stones that lie in a file, in memory or nowhere.
#[derive(Debug)]
struct MosaicLane {
    file: FileId,
    io: LaneContext,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colour {
    File,
    Zero,
    Kept,
}

/// Patches of one colour, and between them stones of changing ones.
fn colour(stone: usize) -> Colour {
    let of = [Colour::File, Colour::Zero, Colour::Kept, Colour::File];
    let patch = stone / PATCH;
    if patch.is_multiple_of(2) { of[patch / 2 % 3] } else { of[stone % 4] }
}

/// What the file has there.
fn file_byte(place: usize) -> u8 {
    u8::try_from(place / STONE % 100 + 1).unwrap()
}

fn expected(place: usize) -> u8 {
    match colour(place / STONE) {
        Colour::File if place < FILE_BYTES => file_byte(place),
        Colour::Kept => 0xcc,
        Colour::File | Colour::Zero => 0,
    }
}

impl LeafLane for MosaicLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let mark = pieces.end();
        for stone in 0..BYTES / STONE {
            let skip = (stone * STONE) as u64;
            let target = match colour(stone) {
                Colour::File => Target::File { file: self.file, offset: ByteOffset(skip) },
                Colour::Zero => Target::Zeroes,
                Colour::Kept => {
                    let memory = HostMemory::of(&[0xcc; STONE]);
                    let memory = self.io.keep(Rc::new(memory)).unwrap();
                    Target::Memory { memory, offset: 0 }
                }
            };
            pieces.push(Piece { skip, count: ByteCount(STONE as u64), target });
        }
        mapping.answer = Answer::Now(pieces.since(mark));
        mapping.eof_policy = EofPolicy::Zeroes;
    }
}

#[test]
fn an_answer_of_very_many_pieces_is_carried_out_whole() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(&(0..FILE_BYTES).map(file_byte).collect::<Vec<_>>()).unwrap();
        let file = OpenFile::adopt(file.into(), "file".into(), BYTES as u64, Aio::Automatic);
        let file = files.insert(Arc::new(file));
        let node = with_lanes(null_disk(BYTES as u64, ReadContent::Zeroes), move |_, io| {
            Box::new(MosaicLane { file, io: io.clone() })
        });
        let mut guest = Guest::with_bulk(BYTES);
        let placed = place(&guest, &node, &iothread);
        (0..BULKS).for_each(|slot| guest.fill_bulk(slot, 0xee));
        (0..BULKS).for_each(|slot| guest.submit(slot, Ask::BulkRead, 0));
        while guest.in_flight() > 0 {
            for slot in guest.completions() {
                assert_eq!(guest.status(slot), 0);
                let read = guest.bulk(slot);
                let wrong = (0..BYTES).find(|place| read[*place] != expected(*place));
                assert_eq!(wrong, None, "slot {slot}");
            }
        }
        assert_eq!(placed.stop().counters().errors, 0);
    });
}

/// A disk whose answers begin with many pieces that cannot be read, and end with one that nobody answers.
#[derive(Debug)]
struct BrokenLane {
    broken: FileId,
    hung: FileId,
}

impl LeafLane for BrokenLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let mark = pieces.end();
        for stone in 0..BYTES / STONE {
            let file = if stone < BYTES / STONE / 2 { self.broken } else { self.hung };
            // Apart in the file, so that each is an operation of its own.
            let target = Target::File { file, offset: ByteOffset((stone * 2 * STONE) as u64) };
            let skip = (stone * STONE) as u64;
            pieces.push(Piece { skip, count: ByteCount(STONE as u64), target });
        }
        mapping.answer = Answer::Now(pieces.since(mark));
    }
}

#[test]
fn what_has_failed_is_not_carried_out_to_its_end() {
    // Not with workers: whether one of them has failed before all of it is begun is up to the host.
    let files = Arc::new(FileTable::default());
    let [iothread] = iothreads::<1>(&files, ReactorChoice::Any);
    let file = |fd, name: &str| {
        let file = OpenFile::adopt(fd, name.into(), BYTES as u64, Aio::Automatic);
        files.insert(Arc::new(file))
    };
    let empty = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let (broken, hung) = (file(empty.into(), "empty"), file(reader, "pipe"));
    let node = with_lanes(null_disk(BYTES as u64, ReadContent::Zeroes), move |_, _| {
        Box::new(BrokenLane { broken, hung })
    });
    let mut guest = Guest::with_bulk(BYTES);
    let placed = place(&guest, &node, &iothread);
    guest.submit(0, Ask::BulkRead, 0);
    assert_eq!(guest.completions(), [0]);
    assert_eq!(guest.status(0), 1);
    placed.stop();
}
