//! A front end that truncates the file behind guest memory.
//!
//! What ends the process is tried in a child: this test binary again, with one test and a variable
//! that says what to do.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use block::Buffers;
use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use virtio::{
    Chain, GuestAddress, GuestMemory, Region, RegionSpec, Ring, RingError, TranslationHint,
    catch_lost_memory,
};

use crate::driver::{Descriptor, Driver, INDIRECT, WRITE};
use crate::guest::{BUFFERS, GUEST, REGION, bytes, map, memfd};

const PAGE: u64 = 4096;
/// Says to a child what to do.
const DEED: &str = "RINGLOOM_SIGBUS_DEED";

/// A file of so many pages, each byte 7, as guest memory from this page on.
fn memory_of(pages: u64, guest: u64) -> (OwnedFd, GuestMemory) {
    let fd = memfd(pages * PAGE);
    for page in 0..pages {
        rustix::io::pwrite(&fd, &[7; 4096], page * PAGE).expect("the file is memory");
    }
    let guest = GuestAddress(guest);
    let spec = RegionSpec { guest, bytes: pages * PAGE, user_address: guest.0, file_offset: 0 };
    let memory = GuestMemory::new(vec![map(&fd, spec)]).expect("one region overlaps nothing");
    (fd, memory)
}

fn buffers(memory: &GuestMemory, address: u64, count: u32) -> Buffers {
    let mut found = Buffers::default();
    let mut hit = TranslationHint::default();
    memory
        .translate(GuestAddress(address), count, &mut hit, |part| found.push(part))
        .expect("the bytes are in memory");
    found
}

#[track_caller]
fn check(memory: &GuestMemory, page: u64, expected: u8) {
    let found = bytes(&buffers(memory, page * PAGE, 8));
    assert_eq!(found, [expected; 8], "page {page}");
}

#[test]
fn what_was_cut_off_reads_as_zero_and_the_rest_stays() {
    catch_lost_memory().unwrap();
    let (fd, memory) = memory_of(8, 0);
    let (_other_fd, other) = memory_of(2, 0);
    ftruncate(&fd, 3 * PAGE).unwrap();
    check(&memory, 2, 7);
    assert!(!memory.is_lost(), "nothing that is gone was touched");
    check(&memory, 5, 0);
    assert!(memory.is_lost());
    // Above what was replaced, then below it, then what is still there.
    for (page, expected) in [(7, 0), (3, 0), (4, 0), (2, 7), (0, 7)] {
        check(&memory, page, expected);
    }
    assert!(memory.is_lost(), "it does not come back");
    check(&other, 1, 7);
    assert!(!other.is_lost());
    assert!(!other.is_lost(), "and so when asked again");
}

#[test]
fn cut_off_memory_can_be_written_without_reaching_the_file() {
    catch_lost_memory().unwrap();
    let (fd, memory) = memory_of(2, 0);
    ftruncate(&fd, 0).unwrap();
    let mut all = buffers(&memory, 0, 8192);
    assert_eq!(all.copy_from(0, &[9; 8192]), 8192);
    assert_eq!(bytes(&all), [9; 8192]);
    assert!(memory.is_lost());
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 0);
}

#[test]
fn a_table_of_regions_is_lost_with_one_of_them() {
    catch_lost_memory().unwrap();
    let spec = |page| RegionSpec {
        guest: GuestAddress(page * PAGE),
        bytes: PAGE,
        user_address: page * PAGE,
        file_offset: 0,
    };
    let (cut, whole) = (memfd(PAGE), memfd(PAGE));
    let regions = [map(&whole, spec(0)), map(&cut, spec(1)), map(&whole, spec(2))];
    let memory = GuestMemory::new(regions.to_vec()).unwrap();
    ftruncate(&cut, 0).unwrap();
    check(&memory, 1, 0);
    assert!(memory.is_lost());
    assert_eq!(regions.map(|region| region.is_lost()), [false, true, false]);
    // Also for a table that is made afterwards, and no longer once the region has gone.
    let rest = memory.without(&spec(2)).unwrap();
    assert!(rest.is_lost());
    assert!(!rest.without(&spec(1)).unwrap().is_lost());
}

#[test]
fn many_threads_may_find_the_loss_at_a_time() {
    catch_lost_memory().unwrap();
    for _ in 0..50 {
        let (fd, memory) = memory_of(16, 0);
        ftruncate(&fd, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for page in 0..16 {
                        check(memory, (page * 5 + thread * 3) % 16, 0);
                        assert!(memory.is_lost(), "whoever has read zeroes can tell");
                    }
                });
            }
        });
    }
}

#[test]
fn errno_is_the_same_after_a_loss() {
    catch_lost_memory().unwrap();
    let (fd, memory) = memory_of(1, 0);
    ftruncate(&fd, 0).unwrap();
    let page = buffers(&memory, 0, 1);
    let mut byte = [1];
    // SAFETY: no duties; every thread has an errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own.
    unsafe { place.write(libc::EXDEV) };
    page.copy_to(0, &mut byte);
    // SAFETY: as above.
    assert_eq!(unsafe { place.read() }, libc::EXDEV);
    assert_eq!(byte, [0]);
}

#[track_caller]
fn check_pop(ring: &mut Ring) {
    let popped = ring.pop(&mut Chain::default());
    assert_eq!(popped, Err(RingError::MemoryLost));
    assert_eq!(
        RingError::MemoryLost.to_string(),
        "the front end has taken guest memory away (its file was truncated)"
    );
}

#[test]
fn a_ring_without_memory_says_so() {
    catch_lost_memory().unwrap();
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.offer(0, &[(BUFFERS, 16, WRITE)]);
    driver.truncate(0);
    check_pop(&mut ring);
    check_pop(&mut ring);
}

#[test]
fn an_empty_ring_without_memory_says_so() {
    catch_lost_memory().unwrap();
    let driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.truncate(0);
    check_pop(&mut ring);
}

#[test]
fn a_chain_whose_descriptors_are_lost_is_not_handed_out() {
    catch_lost_memory().unwrap();
    let mut driver = Driver::new(8, 0);
    // The last page of the file, far from the ring.
    let table = GUEST + REGION - PAGE;
    let entry = Descriptor { address: BUFFERS, bytes: 16, flags: 0, next: 0 };
    driver.set_table(table, &[entry]);
    let mut ring = driver.ring();
    driver.offer(0, &[(table, 16, INDIRECT)]);
    driver.truncate(2 * REGION - PAGE);
    check_pop(&mut ring);
}

#[test]
fn a_loss_found_by_a_completion_is_told_by_the_next_pop() {
    catch_lost_memory().unwrap();
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.offer(0, &[(BUFFERS, 16, WRITE)]);
    let head = ring.pop(&mut Chain::default()).unwrap().expect("a chain was offered");
    driver.truncate(0);
    ring.push_used(head, 0);
    let _interrupt = ring.publish();
    assert!(ring.request_kicks(), "the caller must look again");
    check_pop(&mut ring);
}

#[test]
fn a_ring_does_not_start_in_lost_memory() {
    catch_lost_memory().unwrap();
    let driver = Driver::new(8, 5);
    driver.truncate(0);
    let refused = Ring::new(driver.memory.clone(), driver.setup());
    assert!(matches!(refused, Err(RingError::MemoryLost)), "{refused:?}");
}

/// Touches memory that is gone and belongs to no region.
fn fault_outside() {
    let fd = memfd(PAGE);
    // SAFETY: a null hint lets the kernel choose the place.
    let page = unsafe {
        mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &fd, 0)
            .expect("a page can be mapped")
    };
    ftruncate(&fd, 0).expect("the file may shrink");
    // SAFETY: the page is mapped and readable, as far as Rust is concerned.
    let byte = unsafe { page.cast::<u8>().read_volatile() };
    unreachable!("a page that is gone has a byte {byte}");
}

/// Maps as many regions as the process may have, one more, and one instead of another.
fn fill() {
    let fd = memfd(PAGE);
    let spec =
        RegionSpec { guest: GuestAddress(0x1000), bytes: PAGE, user_address: 0, file_offset: 0 };
    let mut regions: Vec<_> = (0..4096).map(|_| map(&fd, spec)).collect();
    let error = Region::map(
        fd.try_clone().expect("descriptors are available"),
        spec,
        &std::sync::Arc::default(),
    )
    .expect_err("one too many");
    assert_eq!(
        error.to_string(),
        "no room for the memory region at guest address 0x1000: 4096 regions of all sessions are mapped"
    );
    regions.pop();
    map(&fd, spec);
}

fn fault_inside() {
    let (fd, memory) = memory_of(1, 0);
    ftruncate(&fd, 0).expect("the file may shrink");
    check(&memory, 0, 0);
}

/// Writes from several threads to a gigabyte that is gone: the process does not grow by that.
fn write_much() {
    const BYTES: u32 = 1 << 30;
    let fd = memfd(BYTES.into());
    let spec =
        RegionSpec { guest: GuestAddress(0), bytes: BYTES.into(), user_address: 0, file_offset: 0 };
    let memory = GuestMemory::new(vec![map(&fd, spec)]).expect("one region");
    ftruncate(&fd, 0).expect("the file may shrink");
    let before = anonymous_kib();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let memory = &memory;
            scope.spawn(move || {
                let chunk = vec![9; 1 << 20];
                for place in (0..BYTES).step_by(1 << 20).skip(thread).step_by(4) {
                    let mut part = buffers(memory, place.into(), 1 << 20);
                    assert_eq!(part.copy_from(0, &chunk), chunk.len());
                }
            });
        }
    });
    assert!(memory.is_lost());
    let grown = anonymous_kib().saturating_sub(before);
    // Four windows, and what the threads have of their own.
    assert!(grown < 16 << 10, "the process has grown by {grown} KiB");
    // Below what was lost there was nothing; what is written last can be read.
    let mut last = buffers(&memory, (BYTES - 4096).into(), 4096);
    assert_eq!(last.copy_from(0, &[5; 4096]), 4096);
    assert_eq!(bytes(&last), [5; 4096]);
}

/// The memory of its own that this process has touched.
fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.trim().parse().ok()).expect("RssAnon")
}

/// As the kernel tells a thread that it has touched broken memory (BUS_MCEERR_AR), or that a page nobody touches just
/// now is broken (BUS_MCEERR_AO).
fn tell_machine_check(code: i32, address: usize) {
    // SAFETY: all zeroes are a description, of which numbers and addresses are set.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (about.si_signo, about.si_code) = (libc::SIGBUS, code);
    let place = (&raw mut about).cast::<usize>();
    // SAFETY: the description is larger than three words; the third one is the address (sigaction(2)).
    let place = unsafe { place.add(2) };
    // SAFETY: as above, and nobody else has it.
    unsafe { place.write(address) };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let call = libc::SYS_rt_tgsigqueueinfo;
    // SAFETY: a process may send itself whatever description it likes, which is read.
    let sent = unsafe { libc::syscall(call, process, thread, libc::SIGBUS, &raw const about) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

fn machine_check() {
    let (_fd, memory) = memory_of(4, 0);
    let (_other_fd, other) = memory_of(1, 0);
    let page = |number: u64| buffers(&memory, number * PAGE, 1).segments()[0].base().addr().get();
    tell_machine_check(libc::BUS_MCEERR_AO, page(2));
    check(&memory, 2, 7);
    assert!(!memory.is_lost(), "nobody has touched it");
    tell_machine_check(libc::BUS_MCEERR_AR, page(2) + 77);
    assert!(memory.is_lost() && !other.is_lost());
    check(&memory, 1, 7);
    check(&memory, 2, 0);
    check(&other, 0, 7);
    let mut broken = buffers(&memory, 2 * PAGE, 4096);
    assert_eq!(broken.copy_from(0, &[3; 4096]), 4096);
    assert_eq!(bytes(&broken), [3; 4096]);
}

/// A write where there is nothing to write to, and no region.
fn write_outside() {
    // SAFETY: a null hint lets the kernel choose the place.
    let page = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE)
            .expect("a page can be mapped")
    };
    // SAFETY: the page is mapped; that it may not be written is what is tried.
    unsafe { page.cast::<u8>().write_volatile(1) };
    unreachable!("a page that cannot be written was written");
}

/// Nothing of the parent: the handler of Rust's runtime, or this action, and then ours.
fn act(deed: &str) {
    let (before, what) = deed.split_once(' ').expect("two words");
    let action = match before {
        "runtime" => None,
        "default" => Some(libc::SIG_DFL),
        "ignored" => Some(libc::SIG_IGN),
        other => panic!("no action {other}"),
    };
    if let Some(action) = action {
        // SAFETY: both actions are always possible.
        unsafe { libc::signal(libc::SIGBUS, action) };
    }
    catch_lost_memory().expect("a handler can be installed");
    catch_lost_memory().expect("a handler can be installed");
    match what {
        "inside" => fault_inside(),
        "outside" => fault_outside(),
        "full" => fill(),
        "written" => write_much(),
        "broken" => machine_check(),
        "read-only" => write_outside(),
        "sent" => {
            // SAFETY: no duties.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        other => panic!("no deed {other}"),
    }
}

/// How a child ends that does this.
fn child(deed: &str) -> ExitStatus {
    Command::new(std::env::current_exe().expect("a test binary has a path"))
        .args(["--exact", "lost::a_child_does_what_it_is_told", "--test-threads=1"])
        .env(DEED, deed)
        .output()
        .expect("the test binary can be started")
        .status
}

#[track_caller]
fn check_end(deed: &str, expected: Option<i32>) {
    let status = child(deed);
    assert_eq!(status.signal(), expected, "{deed}: {status}");
    assert!(expected.is_some() || status.success(), "{deed}: {status}");
}

/// No test of its own: what the tests below start as a child.
#[test]
fn a_child_does_what_it_is_told() {
    if let Ok(deed) = std::env::var(DEED) {
        act(&deed);
    }
}

#[test]
fn other_bus_errors_end_the_process_as_before() {
    for before in ["runtime", "default", "ignored"] {
        check_end(&format!("{before} inside"), None);
        check_end(&format!("{before} outside"), Some(libc::SIGBUS));
    }
    check_end("default sent", Some(libc::SIGBUS));
    check_end("ignored sent", None);
}

#[test]
fn more_regions_than_the_process_watches_are_refused() {
    check_end("runtime full", None);
}

#[test]
fn what_is_written_in_place_of_lost_memory_is_bounded() {
    check_end("runtime written", None);
}

/// The kernel's own message of a machine check is imitated: it takes a broken memory, or a kernel built to pretend one.
#[test]
fn broken_memory_is_lost_like_memory_that_was_taken_away() {
    check_end("runtime broken", None);
}

#[test]
fn other_writes_that_are_not_allowed_end_the_process_as_before() {
    check_end("runtime read-only", Some(libc::SIGSEGV));
}
