//! The kernel's side: transfers, failures and polls, on every engine and reactor.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod inline;
mod interest;
mod misled;
mod streams;
mod waits;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use block::{ByteCount, ByteOffset, Durability, FileId, Segment, ZeroTerms};
use kernel_io::{
    Aio, DiscardOrZeroGoal, EngineKernel, Event, FileTable, Interest, IoFailure, Kernel, Notifier,
    OpenFile, ReactorChoice, ReactorKind, Tag, WaitMode,
};
use rustix::io::Errno;

/// Memory that lives for ever, for segments.
fn memory(bytes: &[u8]) -> (NonNull<u8>, impl Fn(usize, usize) -> Segment + use<>) {
    let base = NonNull::from(Box::leak(bytes.to_vec().into_boxed_slice())).cast::<u8>();
    let count = bytes.len();
    let segment = move |skip: usize, length: usize| {
        assert!(skip + length <= count);
        // SAFETY: inside the leaked memory, as just checked.
        let start = unsafe { base.add(skip) };
        // SAFETY: the memory is never freed.
        unsafe { Segment::new(start, length) }
    };
    (base, segment)
}

fn read_back(base: NonNull<u8>, count: usize) -> Vec<u8> {
    // SAFETY: `memory` leaked at least `count` bytes there, and no operation is in flight.
    unsafe { std::slice::from_raw_parts(base.as_ptr(), count) }.to_vec()
}

fn fill(base: NonNull<u8>, count: usize, byte: u8) {
    // SAFETY: `memory` leaked at least `count` bytes there, and no operation is in flight.
    unsafe { std::ptr::write_bytes(base.as_ptr(), byte, count) };
}

/// What a test runs on.
#[derive(Debug, Clone, Copy)]
struct Rig {
    reactors: ReactorChoice,
    aio: Aio,
}

impl Rig {
    fn kernel(self, table: Arc<FileTable>) -> Kernel {
        Kernel::new(table, self.reactors).unwrap()
    }
}

/// Runs a test on every engine and reactor.
#[expect(clippy::print_stdout, reason = "a failure has to say on what it happened")]
fn on_all(test: impl Fn(Rig)) {
    for reactors in [ReactorChoice::Any, ReactorChoice::EpollOnly] {
        for aio in [Aio::Automatic, Aio::IoUring, Aio::Native, Aio::Threads] {
            let rig = Rig { reactors, aio };
            println!("{rig:?}");
            test(rig);
        }
    }
}

fn file(rig: Rig, table: &FileTable, bytes: &[u8]) -> (FileId, std::fs::File) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let fd: OwnedFd = file.try_clone().unwrap().into();
    (table.insert(Arc::new(OpenFile::adopt(fd, "image".into(), bytes.len() as u64, rig.aio))), file)
}

fn next(kernel: &mut Kernel) -> Event {
    loop {
        if let Some(event) = kernel.next_event() {
            return event;
        }
        kernel.wait(WaitMode::Block).unwrap();
    }
}

#[track_caller]
fn finished(kernel: &mut Kernel, expected: Tag) -> Result<(), IoFailure> {
    match next(kernel) {
        Event::Finished { tag, result, .. } if tag == expected => result,
        other @ (Event::Finished { .. }
        | Event::Extent { .. }
        | Event::Ready { .. }
        | Event::Writable { .. }
        | Event::PollEnded { .. }
        | Event::Transferred { .. }) => {
            panic!("expected the end of {expected:?}, got {other:?}")
        }
    }
}

#[test]
fn what_is_written_from_several_segments_is_read_into_others() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, &[0; 64]);
        let mut kernel = rig.kernel(table);
        let (_, from) = memory(b"abcdefghij");
        let parts = [from(0, 3), from(5, 5)].into_iter();
        kernel.write(id, ByteOffset(10), Durability::Stable, parts, Tag(1));
        finished(&mut kernel, Tag(1)).unwrap();
        let (base, to) = memory(&[b'.'; 10]);
        kernel.read(id, ByteOffset(9), [to(0, 1), to(1, 8), to(9, 1)].into_iter(), Tag(2));
        finished(&mut kernel, Tag(2)).unwrap();
        assert_eq!(read_back(base, 10), b"\0abcfghij\0");
        kernel.sync(id, Tag(3));
        finished(&mut kernel, Tag(3)).unwrap();
    });
}

/// A look for news must not wait for operations that nobody has handed to the kernel.
#[test]
fn what_is_queued_is_news_until_it_is_submitted() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, &[7; 64]);
        let mut kernel = rig.kernel(table);
        let (_, to) = memory(&[0; 64]);
        // Workers have it at once, and may be done.
        let is_queued = |kernel: &mut Kernel| match (rig.aio, kernel.waits_with()) {
            (Aio::Native, _) | (Aio::Automatic | Aio::IoUring, ReactorKind::IoUring) => {
                assert!(kernel.has_pending(), "nobody hands it to the kernel");
            }
            (Aio::Automatic | Aio::IoUring | Aio::Threads, _) => {}
        };
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 64)), Tag(1));
        is_queued(&mut kernel);
        finished(&mut kernel, Tag(1)).unwrap();
        // The first one of what follows it is queued while its result is worked off.
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 64)), Tag(2));
        is_queued(&mut kernel);
        finished(&mut kernel, Tag(2)).unwrap();
        assert!(!kernel.has_pending(), "nothing is left");
    });
}

/// More than the kernel takes at once: what waits is no news while nothing can be done about it, and
/// all of it is carried out.
#[test]
fn what_waits_for_room_is_carried_out() {
    const OPERATIONS: u64 = 2500;
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, &[7; 64]);
        let mut kernel = rig.kernel(table);
        let (_, to) = memory(&[0; 64]);
        for tag in 0..OPERATIONS {
            kernel.read(id, ByteOffset(0), std::iter::once(to(0, 64)), Tag(tag));
        }
        let mut ended = 0;
        while ended < OPERATIONS {
            // Without blocking as long as there are news, as an iothread does that looks.
            let wait = if kernel.has_pending() { WaitMode::Poll } else { WaitMode::Block };
            kernel.wait(wait).unwrap();
            while let Some((_, result, _)) = kernel.next_finished() {
                result.unwrap();
                ended += 1;
            }
        }
        assert!(!kernel.has_pending(), "nothing is left");
    });
}

#[test]
fn a_file_that_has_become_shorter_is_an_error_and_not_zeroes() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, &[7; 1000]);
        let mut kernel = rig.kernel(table);
        let (_, to) = memory(&[0; 2000]);
        kernel.read(id, ByteOffset(0), std::iter::once(to(0, 2000)), Tag(0));
        let failure = finished(&mut kernel, Tag(0)).unwrap_err();
        assert_eq!(failure, IoFailure::EndOfFile { offset: ByteOffset(1000) });
    });
}

#[test]
fn more_segments_than_one_call_takes_arrive_all_the_same() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, file) = file(rig, &table, &[]);
        let mut kernel = rig.kernel(table);
        let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let (_, from) = memory(&bytes);
        let parts = (0..3000).map(|place| from(place, 1));
        kernel.write(id, ByteOffset(0), Durability::Cached, parts, Tag(0));
        finished(&mut kernel, Tag(0)).unwrap();
        let mut found = vec![0; 3000];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).unwrap();
        assert_eq!(found, bytes);
    });
}

#[test]
fn a_bounce_buffer_comes_back_with_its_operation() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, b"0123456789");
        let mut kernel = rig.kernel(table);
        let mut pool = kernel_io::BouncePool::default();
        kernel.read_bounce(id, ByteOffset(2), 5, pool.take(kernel_io::BounceSize::Small), Tag(0));
        let Event::Finished { result: Ok(()), bounce: Some(buffer), .. } = next(&mut kernel) else {
            panic!("the read failed")
        };
        let (base, to) = memory(&[0; 5]);
        let mut buffers = block::Buffers::default();
        buffers.push(to(0, 5));
        buffer.drain(0, &mut buffers, 0, 5);
        assert_eq!(read_back(base, 5), b"23456");
        pool.put(buffer);
    });
}

#[test]
fn holes_are_punched_and_what_a_file_cannot_do_is_said() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, file) = file(rig, &table, &[9; 8192]);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let pipe = table.insert(Arc::new(OpenFile::adopt(reader, "pipe".into(), 0, rig.aio)));
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let null = OpenFile::adopt(null.into(), "null".into(), 0, rig.aio);
        let null = table.insert(Arc::new(null));
        let mut kernel = rig.kernel(table);
        kernel.allocate(
            id,
            ByteOffset(4096),
            ByteCount(4096),
            DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
            Tag(0),
        );
        finished(&mut kernel, Tag(0)).unwrap();
        let mut found = vec![0; 8192];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).unwrap();
        assert!(found[..4096].iter().all(|byte| *byte == 9));
        assert!(found[4096..].iter().all(|byte| *byte == 0));
        // What has no space can do none of it: said the first time by the host, then by us.
        for tag in 2..4 {
            for how in [
                DiscardOrZeroGoal::Zeroes(ZeroTerms::KEEP),
                DiscardOrZeroGoal::Zeroes(ZeroTerms::UNMAP),
                DiscardOrZeroGoal::Discard,
            ] {
                kernel.allocate(null, ByteOffset(0), ByteCount(4096), how, Tag(tag));
                let failure = finished(&mut kernel, Tag(tag)).unwrap_err();
                let errno = Errno::OPNOTSUPP;
                assert_eq!(failure, IoFailure::Errno { offset: ByteOffset(0), errno });
            }
        }
        kernel.sync(pipe, Tag(1));
        let failure = finished(&mut kernel, Tag(1)).unwrap_err();
        assert_eq!(failure, IoFailure::Errno { offset: ByteOffset(0), errno: Errno::INVAL });
    });
}

#[test]
fn a_poll_that_is_cancelled_while_it_fires_ends_every_time() {
    on_all(|rig| {
        let mut kernel = rig.kernel(Arc::new(FileTable::default()));
        let notifier = Arc::new(Notifier::new().unwrap());
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ringer = {
            let (notifier, stop) = (Arc::clone(&notifier), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    notifier.wake();
                }
            })
        };
        // POLL_REMOVE gave up here within some hundred rounds.
        for round in 0..5000 {
            kernel.poll(notifier.as_fd(), Interest::Read, Tag(round));
            if round % 2 == 0 {
                kernel.wait(WaitMode::Poll).unwrap();
            }
            kernel.cancel_poll(Tag(round));
            loop {
                match next(&mut kernel) {
                    Event::PollEnded { tag } => break assert_eq!(tag, Tag(round)),
                    Event::Ready { tag } => assert_eq!(tag, Tag(round)),
                    other @ (Event::Finished { .. }
                    | Event::Extent { .. }
                    | Event::Writable { .. }
                    | Event::Transferred { .. }) => panic!("{other:?}"),
                }
            }
            notifier.clear();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        ringer.join().unwrap();
    });
}

#[test]
fn a_descriptor_that_cannot_be_polled_is_cancelled_like_any_other() {
    on_all(|rig| {
        let mut kernel = rig.kernel(Arc::new(FileTable::default()));
        // No other test opens so high a number in the meantime.
        let closed = i32::MAX - 1;
        // SAFETY: nobody has this descriptor, and a poll of a closed one only fails.
        let closed = unsafe { std::os::fd::BorrowedFd::borrow_raw(closed) };
        kernel.poll(closed, Interest::Read, Tag(5));
        kernel.wait(WaitMode::Poll).unwrap();
        kernel.cancel_poll(Tag(5));
        assert!(matches!(next(&mut kernel), Event::PollEnded { tag: Tag(5) }));
    });
}

#[test]
fn more_files_than_a_ring_registers_are_read_all_the_same() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let mut image = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(300).collect();
        image.write_all(&bytes).unwrap();
        let ids: Vec<FileId> = (0..300)
            .map(|_| {
                let fd: OwnedFd = image.try_clone().unwrap().into();
                table.insert(Arc::new(OpenFile::adopt(fd, "image".into(), 300, rig.aio)))
            })
            .collect();
        let mut kernel = rig.kernel(table);
        let (base, to) = memory(&[0; 300]);
        for (place, id) in ids.into_iter().enumerate() {
            let part = std::iter::once(to(place, 1));
            kernel.read(id, ByteOffset(place as u64), part, Tag(place as u64));
        }
        for _ in 0..300 {
            assert!(matches!(next(&mut kernel), Event::Finished { result: Ok(()), .. }));
        }
        assert_eq!(read_back(base, 300), bytes);
    });
}

#[test]
fn many_operations_at_once_are_all_carried_out() {
    const COUNT: usize = 3000;
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, _file) = file(rig, &table, &[0; COUNT]);
        let mut kernel = rig.kernel(table);
        let bytes: Vec<u8> = (0..=255).cycle().take(COUNT).collect();
        let (_, from) = memory(&bytes);
        let (base, to) = memory(&[0; COUNT]);
        for place in 0..COUNT {
            let (offset, tag) = (ByteOffset(place as u64), Tag(place as u64));
            let part = std::iter::once(from(place, 1));
            kernel.write(id, offset, Durability::Cached, part, tag);
        }
        for _ in 0..COUNT {
            assert!(matches!(next(&mut kernel), Event::Finished { result: Ok(()), .. }));
        }
        for place in 0..COUNT {
            let (offset, tag) = (ByteOffset(place as u64), Tag(place as u64));
            kernel.read(id, offset, std::iter::once(to(place, 1)), tag);
        }
        for _ in 0..COUNT {
            assert!(matches!(next(&mut kernel), Event::Finished { result: Ok(()), .. }));
        }
        assert_eq!(read_back(base, COUNT), bytes);
    });
}

#[test]
fn what_is_in_flight_is_waited_for_before_the_kernel_is_given_up() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let (id, file) = file(rig, &table, &[0; 64]);
        let mut kernel = rig.kernel(table);
        let (_, from) = memory(&[7; 64]);
        kernel.write(id, ByteOffset(0), Durability::Stable, std::iter::once(from(0, 64)), Tag(0));
        drop(kernel);
        let mut found = [0; 64];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).unwrap();
        assert_eq!(found, [7; 64]);
    });
}

#[test]
fn a_counter_that_nobody_reads_is_told_once_for_each_write() {
    on_all(|rig| {
        let mut kernel = rig.kernel(Arc::new(FileTable::default()));
        let notifier = Notifier::new().unwrap();
        notifier.wake();
        kernel.poll(notifier.as_fd(), Interest::Read, Tag(1));
        assert!(matches!(next(&mut kernel), Event::Ready { tag: Tag(1) }));
        for _ in 0..10 {
            kernel.wait(WaitMode::Poll).unwrap();
            assert!(kernel.next_event().is_none(), "an unread counter must not spin");
        }
        notifier.wake();
        assert!(matches!(next(&mut kernel), Event::Ready { tag: Tag(1) }));
        notifier.wake();
        kernel.wait(WaitMode::Poll).unwrap();
        kernel.cancel_poll(Tag(1));
        while !matches!(next(&mut kernel), Event::PollEnded { tag: Tag(1) }) {}
        notifier.wake();
        kernel.wait(WaitMode::Poll).unwrap();
        assert!(kernel.next_event().is_none(), "an event after the end");
    });
}

#[test]
fn two_descriptors_of_one_counter_are_watched_each_for_itself() {
    on_all(|rig| {
        let mut kernel = rig.kernel(Arc::new(FileTable::default()));
        let notifier = Notifier::new().unwrap();
        let second = notifier.as_fd().try_clone_to_owned().unwrap();
        kernel.poll(notifier.as_fd(), Interest::Read, Tag(1));
        kernel.poll(second.as_fd(), Interest::Read, Tag(2));
        kernel.cancel_poll(Tag(1));
        assert!(matches!(next(&mut kernel), Event::PollEnded { tag: Tag(1) }));
        notifier.wake();
        assert!(matches!(next(&mut kernel), Event::Ready { tag: Tag(2) }));
        // The number is free for another watch.
        kernel.poll(notifier.as_fd(), Interest::Read, Tag(3));
        assert!(matches!(next(&mut kernel), Event::Ready { tag: Tag(3) }));
    });
}

/// More files than a ring registers, one after the other.
#[test]
fn files_that_were_taken_out_are_closed() {
    on_all(|rig| {
        let table = Arc::new(FileTable::default());
        let mut kernel = rig.kernel(Arc::clone(&table));
        for round in 0..300 {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, b"some").unwrap();
            let file = OpenFile::adopt(reader, "pipe".into(), 0, rig.aio);
            let id = table.insert(Arc::new(file));
            let (base, to) = memory(b"....");
            kernel.read(id, ByteOffset(0), std::iter::once(to(0, 4)), Tag(round));
            finished(&mut kernel, Tag(round)).unwrap();
            assert_eq!(read_back(base, 4), b"some");
            table.remove(id);
            kernel.forget_files();
            // What a ring has given up may be closed by work of the kernel that is still to be done.
            while rustix::io::write(&writer, b"more") != Err(Errno::PIPE) {
                kernel.wait(WaitMode::Poll).unwrap();
            }
        }
    });
}
