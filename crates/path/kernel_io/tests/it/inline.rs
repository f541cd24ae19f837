//! Files in memory: done inline, with a bound for each turn.

use std::os::fd::AsFd;
use std::sync::Arc;

use block::{ByteCount, ByteOffset, Durability, FileId, ZeroTerms};
use kernel_io::{
    Aio, DiscardOrZeroGoal, EngineKernel, Event, FileTable, Interest, IoFailure, Kernel, Notifier,
    OpenFile, ReactorChoice, ServedRings, StorageBlockingKind, Tag, WaitMode,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::{Rig, fill, finished, memory, next, read_back};

const MIB: usize = 1 << 20;

fn memory_file(table: &FileTable, bytes: usize) -> FileId {
    let fd =
        rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    let file = OpenFile::adopt(fd, "image".into(), bytes as u64, Aio::Automatic);
    assert_eq!(file.residence(), StorageBlockingKind::Memory);
    table.insert(Arc::new(file))
}

fn on_both(test: impl Fn(Rig)) {
    for reactors in [ReactorChoice::Any, ReactorChoice::EpollOnly] {
        test(Rig { reactors, aio: Aio::Automatic });
    }
}

fn events(kernel: &mut Kernel) -> Vec<Event> {
    std::iter::from_fn(|| kernel.next_event()).collect()
}

#[test]
fn what_is_written_inline_is_an_event_at_once_and_read_back() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, MIB);
        let mut kernel = rig.kernel(table);
        let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let (_, from) = memory(&bytes);
        let parts = (0..3000).map(|place| from(place, 1));
        kernel.write(id, ByteOffset(512), Durability::Stable, parts, Tag(0));
        // Without waiting: 3000 segments are three calls of one turn.
        assert!(matches!(events(&mut kernel)[..], [Event::Finished { tag: Tag(0), .. }]));
        let (base, to) = memory(&[1; 4000]);
        kernel.read(id, ByteOffset(0), [to(0, 700), to(700, 3300)].into_iter(), Tag(1));
        finished(&mut kernel, Tag(1)).unwrap();
        let found = read_back(base, 4000);
        assert!(found[..512].iter().all(|byte| *byte == 0));
        assert_eq!(found[512..3512], bytes);
        kernel.allocate(
            id,
            ByteOffset(0),
            ByteCount(4096),
            DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
            Tag(2),
        );
        finished(&mut kernel, Tag(2)).unwrap();
        kernel.sync(id, Tag(3));
        finished(&mut kernel, Tag(3)).unwrap();
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 4000)), Tag(4));
        finished(&mut kernel, Tag(4)).unwrap();
        assert_eq!(read_back(base, 4000), vec![0; 4000]);
    });
}

#[test]
fn failures_inline_are_told_like_any_other() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, 1000);
        let mut kernel = rig.kernel(Arc::clone(&table));
        let (_, to) = memory(&[0; 2000]);
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 2000)), Tag(0));
        let failure = finished(&mut kernel, Tag(0)).unwrap_err();
        assert_eq!(failure, IoFailure::EndOfFile { offset: ByteOffset(1000) });
        rustix::fs::fcntl_add_seals(table.get(id), SealFlags::WRITE).unwrap();
        kernel.allocate(
            id,
            ByteOffset(0),
            ByteCount(4096),
            DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP),
            Tag(1),
        );
        let failure = finished(&mut kernel, Tag(1)).unwrap_err();
        assert_eq!(failure, IoFailure::Errno { offset: ByteOffset(0), errno: Errno::PERM });
    });
}

#[test]
fn what_is_zeroed_in_memory_keeps_its_space_and_what_is_punched_does_not() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, 4 * MIB);
        let mut kernel = rig.kernel(Arc::clone(&table));
        let (base, all) = memory(&vec![7; 4 * MIB]);
        let mut tag = 0;
        // A large range is filled by somebody else than this thread.
        for (how, bytes, mib_left) in [
            (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), 2 * MIB, 4),
            (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), MIB, 4),
            (DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP), MIB, 3),
            (DiscardOrZeroGoal::Discard, MIB, 3),
            (DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP), MIB, 4),
        ] {
            let whole = || std::iter::once(all(0, 4 * MIB));
            kernel.write(id, ByteOffset(0), Durability::Cached, whole(), Tag(tag));
            finished(&mut kernel, Tag(tag)).unwrap();
            let count = ByteCount(bytes as u64);
            kernel.allocate(id, ByteOffset(MIB as u64), count, how, Tag(tag + 1));
            finished(&mut kernel, Tag(tag + 1)).unwrap();
            let space = rustix::fs::fstat(table.get(id)).unwrap().st_blocks * 512;
            assert_eq!(usize::try_from(space), Ok(mib_left * MIB), "{how:?} of {bytes} bytes");
            kernel.read(id, ByteOffset(0), whole(), Tag(tag + 2));
            finished(&mut kernel, Tag(tag + 2)).unwrap();
            let found = read_back(base, 4 * MIB);
            let zeroed = MIB..MIB + bytes;
            let right = |(place, byte): (usize, &u8)| (*byte == 0) == zeroed.contains(&place);
            assert!(found.iter().enumerate().all(right), "{how:?} of {bytes} bytes");
            fill(base, 4 * MIB, 7);
            tag += 4;
        }
    });
}

#[test]
fn a_turn_is_bounded_and_polls_get_theirs_between_two() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, 4 * MIB);
        let mut kernel = rig.kernel(table);
        let notifier = Notifier::new().unwrap();
        kernel.poll(notifier.as_fd(), Interest::Read, Tag(9));
        kernel.wait(WaitMode::Poll).unwrap();
        let (_, to) = memory(&vec![0; 4 * MIB]);
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 3 * MIB + 5)), Tag(0));
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, MIB)), Tag(1));
        assert!(kernel.next_event().is_none(), "3 MiB are more than a turn's bytes");
        notifier.wake();
        // The next turn goes to the large read as well; the call must not block.
        kernel.wait(WaitMode::Block).unwrap();
        let found = events(&mut kernel);
        assert!(matches!(found[..], [Event::Ready { tag: Tag(9) }]), "{found:?}");
        // What is left of the larger read has queued behind the other.
        finished(&mut kernel, Tag(1)).unwrap();
        finished(&mut kernel, Tag(0)).unwrap();
    });
}

#[test]
fn small_operations_do_not_wait_for_large_ones() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, 2 * MIB);
        let mut kernel = rig.kernel(table);
        let bytes: Vec<u8> = (0..=255).cycle().take(2 * MIB).collect();
        let (base, at) = memory(&bytes);
        kernel.write(
            id,
            ByteOffset(0),
            Durability::Cached,
            std::iter::once(at(0, 2 * MIB)),
            Tag(0),
        );
        let parts = [at(MIB, 1000), at(0, 3096)];
        kernel.write(id, ByteOffset(0), Durability::Cached, parts.into_iter(), Tag(1));
        kernel.sync(id, Tag(2));
        let found = events(&mut kernel);
        let [Event::Finished { tag: Tag(1), .. }, Event::Finished { tag: Tag(2), .. }] = found[..]
        else {
            panic!("{found:?}")
        };
        // Even of those a turn does not do any number.
        for number in 3..1000 {
            kernel.sync(id, Tag(number));
        }
        assert!(events(&mut kernel).len() < 996);
        while kernel.next_event().is_none_or(|event| {
            !matches!(event, Event::Finished { tag: Tag(0), result: Ok(()), .. })
        }) {
            kernel.wait(WaitMode::Block).unwrap();
        }
        kernel.read(id, ByteOffset(MIB as u64), std::iter::once(at(0, MIB)), Tag(1000));
        while !matches!(next(&mut kernel), Event::Finished { tag: Tag(1000), .. }) {}
        assert_eq!(read_back(base, MIB), bytes[MIB..]);
    });
}

#[test]
fn beside_others_a_turn_is_shorter() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, MIB);
        let mut kernel = rig.kernel(Arc::clone(&table));
        let (_, to) = memory(&vec![0; MIB]);
        let shares = [ServedRings::One, ServedRings::SeveralLong, ServedRings::Several];
        let turns = shares.map(|share| {
            kernel.share_inline(share);
            kernel.wait(WaitMode::Poll).unwrap();
            kernel.read(id, ByteOffset(0), std::iter::once(to(0, MIB)), Tag(0));
            let mut turns = 1;
            while kernel.next_event().is_none() {
                kernel.wait(WaitMode::Block).unwrap();
                turns += 1;
            }
            turns
        });
        assert!(turns[0] == 1 && turns[1] == 4 && turns[2] >= 64, "{turns:?}");
    });
}

#[test]
fn many_small_operations_are_bounded_and_stay_in_order() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, MIB);
        let mut kernel = rig.kernel(Arc::clone(&table));
        let (_, to) = memory(&[0; 512]);
        for number in 0..1000 {
            kernel.read(id, ByteOffset(0), std::iter::once(to(0, 512)), Tag(number));
        }
        let first = events(&mut kernel).len();
        assert!((1..1000).contains(&first), "{first} operations in one turn");
        for number in first as u64..1000 {
            let Event::Finished { tag, result: Ok(()), .. } = next(&mut kernel) else {
                panic!("read {number} failed")
            };
            assert_eq!(tag, Tag(number));
        }
    });
}

#[test]
fn what_waits_for_its_turn_is_done_before_the_kernel_is_given_up() {
    on_both(|rig| {
        let table = Arc::new(FileTable::default());
        let id = memory_file(&table, 4 * MIB);
        let (_, from) = memory(&vec![7; 4 * MIB]);
        let mut kernel = rig.kernel(Arc::clone(&table));
        let all = std::iter::once(from(0, 4 * MIB));
        kernel.write(id, ByteOffset(0), Durability::Cached, all, Tag(0));
        drop(kernel);
        let mut last = [0];
        rustix::io::pread(table.get(id).as_fd(), &mut last, 4 * MIB as u64 - 1).unwrap();
        assert_eq!(last, [7]);
    });
}
