//! Attacks with guest memory: too much of it, less than was promised, memory without pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use super::{Arena, Attack, Victim, offer_heads, offer_many, read_of, wait_used};
use crate::rawring::{Ack, DirtyLog, Piece, RawDevice, RawShape, Region, flag, kind, request};
use crate::rng::Rng;
use crate::silent_file::{SilentFile, Unanswered};

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "sparse memory without end (6)", victim: Victim::Raw, run: sparse },
    Attack { name: "small memory cut off in mid-request", victim: Victim::Other, run: cut_off },
    Attack { name: "holes punched in mid-request", victim: Victim::Raw, run: punched },
    Attack { name: "huge pages that are not there", victim: Victim::Other, run: huge_pages },
    Attack { name: "the longest ring and a dirty log (5)", victim: Victim::Null, run: logged },
    Attack { name: "large memory cut off under reads", victim: Victim::Null, run: large_cut_off },
    Attack { name: "memory in files (1)", victim: Victim::Other, run: files },
];

/// A memfd of this length, of which no page is there.
fn sparse_file(bytes: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    let file = memfd_create("testkit-sparse", MemfdFlags::CLOEXEC | flags).context("memfd")?;
    ftruncate(&file, bytes).context("its length")?;
    Ok(file)
}

/// A region that lies where no other one does.
fn region(number: u64, size: u64) -> Region {
    let guest_address = 0x100_0000_0000 + number * size;
    Region { guest_address, size, user_address: 0x2000_0000_0000 + number * size, file_offset: 0 }
}

fn add(device: &RawDevice, region: &Region, file: BorrowedFd<'_>) -> Result<Ack> {
    device.front_end.tell(request::ADD_MEM_REG, &region.single(), &[file])
}

/// Addresses cost the attacker nothing, and the daemon has 128 TiB of them.
fn sparse(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let device = arena.device(Victim::Raw)?;
    let size = 2 << 40;
    let file = sparse_file(size, MemfdFlags::empty())?;
    for number in 0..100 {
        match add(&device, &region(number, size), file.as_fd())? {
            Ack::Done => {}
            Ack::Refused(_) | Ack::Ended => break,
        }
    }
    arena.others_go_on();
    Ok(())
}

/// Puts reads and writes into flight on both queues.
fn in_flight(device: &mut RawDevice) -> Result<()> {
    let read = read_of(device, 0, 1 << 20);
    for queue in 0..2 {
        offer_many(device, queue, &read, 32)?;
    }
    Ok(())
}

/// From here on a touch of the memory is a SIGBUS, for the attacker as well.
fn cut_off(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Other)?;
    in_flight(&mut device)?;
    let half = u64::try_from(device.memory.length() / 2).context("small")?;
    let length = if rng.one_in(2) { 0 } else { half };
    ftruncate(device.memory.file(), length).context("cut the memory off")?;
    device.ring(0).kick()?;
    arena.others_go_on();
    Ok(())
}

fn punched(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Raw)?;
    in_flight(&mut device)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let pages = device.memory.length() / 4096;
    for _ in 0..200 {
        let offset = u64::try_from(rng.index(pages) * 4096).context("small")?;
        fallocate(device.memory.file(), flags, offset, 16 << 10).context("punch a hole")?;
    }
    device.ring(0).kick()?;
    device.ring(1).kick()?;
    arena.others_go_on();
    Ok(())
}

/// Mapped or not: whoever touches it gets a SIGBUS, because the host has no such pages.
fn huge_pages(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Other)?;
    let size = 2 << 20;
    let file = sparse_file(size, MemfdFlags::HUGETLB)?;
    let region = region(0, size);
    if add(&device, &region, file.as_fd())? == Ack::Done {
        let (header, status) = device.frame(kind::IN, 0);
        let data = Piece { address: region.guest_address, length: 4096, flags: flag::WRITE };
        offer_many(&mut device, 0, &[header, data, status], 8)?;
    }
    arena.others_go_on();
    Ok(())
}

/// Of each of 32768 requests the daemon has to remember 1024 places, to mark them.
fn logged(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let shape = RawShape { queues: 1, queue_size: 32768, ..RawShape::default() };
    let mut device = arena.device_of(Victim::Null, shape)?;
    device.start_log(&DirtyLog::new(RawDevice::guest_end())?)?;
    let (header, status) = device.frame(kind::IN, 0);
    let mut pieces = vec![header];
    pieces.extend((0..1024).map(|place| device.data(place, 1, flag::WRITE)));
    pieces.push(status);
    for first in (0..32768).step_by(4096) {
        let last = first + 4096;
        offer_heads(&mut device, 0, &pieces, first..last)?;
        wait_used(&device, last, Duration::from_secs(2))?;
    }
    arena.others_go_on();
    Ok(())
}

/// What the daemon reads into a place that is gone goes to pages of its own.
fn large_cut_off(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    /// Each request reads all of it, in pieces of this length.
    const PIECE: u32 = 1 << 20;
    let mut device = arena.device(Victim::Null)?;
    let size = 1 << 30;
    let file = sparse_file(size, MemfdFlags::empty())?;
    let region = region(0, size);
    ensure!(add(&device, &region, file.as_fd())? == Ack::Done, "no region of a GiB");
    let (header, status) = device.frame(kind::IN, 0);
    let mut pieces = vec![header];
    pieces.extend((0..1023).map(|place| Piece {
        address: region.guest_address + place * u64::from(PIECE),
        length: PIECE,
        flags: flag::WRITE,
    }));
    pieces.push(status);
    offer_many(&mut device, 0, &pieces, 16)?;
    ftruncate(&file, 0).context("cut the memory off")?;
    arena.others_go_on();
    Ok(())
}

/// Files of a disk, and of a file system that answers nothing: each is refused, before anybody waits for it.
fn files(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    /// More than a device has.
    const BYTES: u64 = 8 << 20;
    let place = arena.disks.bench().path(&format!("memory-{:x}", rng.next_u64()));
    if rng.one_in(2) || !rustix::process::geteuid().is_root() {
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&place);
        let file = file.context("make a file")?;
        file.set_len(BYTES).context("its length")?;
        is_refused(arena, file.as_fd())?;
        return std::fs::remove_file(place).context("remove the file");
    }
    let unanswered = [Unanswered::Page, Unanswered::Attributes][rng.index(2)];
    let file = SilentFile::mount(&place, BYTES, unanswered)?;
    is_refused(arena, file.as_fd())
}

fn is_refused(arena: &Arena<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let socket = arena.disks.socket(Victim::Other);
    let device = RawDevice::negotiated(&socket, RawShape::default())?;
    let table = Region::table(&device.regions());
    let ack = device.front_end.tell(request::SET_MEM_TABLE, &table, &[file, file])?;
    ensure!(ack != Ack::Done, "a file was taken for memory");
    arena.others_go_on();
    Ok(())
}
