//! Live migration as a front end sees it: it keeps a copy of guest memory up to date by the dirty log alone, while the
//! disk is in use, and in the end the copy must be the memory.
//!
//! What can go wrong: a page that the device has written is not marked, or marked before it is written, or its mark is
//! lost to the front end that takes marks at the same time. Then the guest finds old bytes after a migration: data of a
//! read, a status byte, or a completion that never came. Marks too many cost time only; which are allowed is checked too.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::poll_until;
use testkit::memory::SharedMemory;
use testkit::process::{Bench, Program};
use testkit::rawring::{
    DirtyLog, Form, LOG_PAGE_BYTES, PackedDriver, Piece, RawDevice, RawShape, feature, flag, kind,
    request,
};
use testkit::rng::Rng;

use crate::support::{Disk, Iothreads, ringloom, ringloom_without_io_uring, stop, with};

const IMAGE_BYTES: usize = 4 << 20;
const PAGE: usize = 4096;
/// Where the device may write data in the data area, and what the test writes from for it to store.
const TARGETS: Range<usize> = 0..1 << 20;
const SOURCE: usize = 2 << 20;
const REQUESTS: u32 = 300;
/// So large that what is written of the ring lies on several pages.
const RING: RawShape = RawShape { queues: 1, queue_size: 1024, features: 0 };
const SPLIT: u64 =
    feature::RING_INDIRECT_DESC | feature::RING_EVENT_IDX | feature::BLK_MQ | feature::BLK_FLUSH;

/// The other end of a migration: a copy of some pages of the shared memory.
struct Copy {
    memory: Arc<SharedMemory>,
    pages: Vec<(usize, Vec<u8>)>,
}

impl Copy {
    /// Of the pages that hold these ranges.
    fn of(memory: &Arc<SharedMemory>, ranges: &[Range<usize>]) -> Self {
        let pages =
            ranges.iter().flat_map(pages).map(|place| (place, memory.read(place, PAGE))).collect();
        Self { memory: Arc::clone(memory), pages }
    }

    /// Sends one page again.
    fn update(&mut self, place: usize) {
        for (start, copy) in &mut self.pages {
            if *start == place {
                self.memory.read_into(place, copy);
            }
        }
    }

    fn check(&self) -> Result<()> {
        for (start, copy) in &self.pages {
            let now = self.memory.read(*start, PAGE);
            ensure!(now == *copy, "the page at {start:#x} was written and not marked");
        }
        Ok(())
    }
}

/// The driver of either layout.
enum Driver {
    Split,
    Packed(PackedDriver),
}

/// A device whose front end migrates.
struct Migrating {
    device: RawDevice,
    driver: Driver,
    log: DirtyLog,
    copy: Copy,
    rng: Rng,
    /// Where status bytes are in the shared memory.
    status: usize,
    /// The pages that a request was told to write, by their place in the shared memory.
    told: BTreeSet<usize>,
    /// The pages that were found marked.
    marked: BTreeSet<usize>,
}

impl Migrating {
    fn connect(disk: &Disk<'_>, layout: u64) -> Result<Self> {
        let device = RawDevice::connect(&disk.socket(), RawShape { features: layout, ..RING })?;
        ensure!(device.features & layout == layout, "features {:#x}", device.features);
        let driver = if layout & feature::RING_PACKED == 0 {
            Driver::Split
        } else {
            Driver::Packed(PackedDriver::new(&device.memory, device.ring(0)))
        };
        let log = DirtyLog::new(RawDevice::guest_end())?;
        let copy = Copy::of(&device.memory, &[]);
        let (_, status) = device.frame(kind::FLUSH, 0);
        let status = device.place(status.address).context("the status is memory")?;
        let (told, marked) = Default::default();
        Ok(Self { device, driver, log, copy, rng: Rng::new(0x10c), status, told, marked })
    }

    /// Switches the log on and sends everything once, as a migration does.
    fn begin(&mut self) -> Result<()> {
        self.device.start_log(&self.log)?;
        let [status, ring] = self.own();
        self.copy = Copy::of(&self.device.memory, &[self.targets(), status, ring]);
        Ok(())
    }

    fn data_place(&self, offset: usize) -> usize {
        let address = self.device.data(offset, 1, 0).address;
        self.device.place(address).expect("the data area is memory")
    }

    fn targets(&self) -> Range<usize> {
        let start = self.data_place(TARGETS.start);
        start..start + TARGETS.len()
    }

    /// What the device writes besides data: a status byte and its part of the ring. The driver writes to the same
    /// pages, but always before the device does, so a mark of the device stands for both.
    fn own(&self) -> [Range<usize>; 2] {
        let [table, used, _] = self.device.ring(0).offsets();
        let ring = match self.driver {
            Driver::Split => used..used + 6 + 8 * usize::from(RING.queue_size),
            // The descriptors; the device's events are behind them.
            Driver::Packed(_) => table..used + 4,
        };
        [self.status..self.status + 1, ring]
    }

    /// Random pieces of the targets, of so many bytes together.
    fn pieces(&mut self, bytes: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let length = if pieces.len() == 6 { left } else { 1 + self.rng.index(left) };
            let mut offset = TARGETS.start + self.rng.index(TARGETS.len() - length);
            if self.rng.one_in(2) {
                offset &= !511;
            }
            let place = self.data_place(offset);
            self.told.extend(pages(&(place..place + length)));
            let count = u32::try_from(length).expect("small");
            pieces.push(self.device.data(offset, count, flag::WRITE));
            left -= length;
        }
        pieces
    }

    /// A request of some kind. Most reads are in one piece, which direct I/O can take as it is.
    fn request(&mut self) -> Result<()> {
        let count = 1 + self.rng.index(40);
        let sector = self.rng.below((IMAGE_BYTES / 512 - count) as u64);
        let bytes = count * 512;
        let (kind, data) = match self.rng.below(8) {
            0 => (kind::FLUSH, Vec::new()),
            1 => (kind::GET_ID, self.pieces(20)),
            2 | 3 => {
                let content: Vec<u8> =
                    (0..bytes).map(|_| self.rng.next_u64().to_le_bytes()[0]).collect();
                self.device.put(SOURCE, &content);
                let length = u32::try_from(bytes).expect("small");
                (kind::OUT, vec![self.device.data(SOURCE, length, 0)])
            }
            _ => (kind::IN, self.pieces(bytes)),
        };
        let (header, status) = self.device.frame(kind, sector);
        self.execute(&[vec![header], data, vec![status]].concat())?;
        let status = self.device.memory.read(self.status, 1)[0];
        ensure!(status == 0, "a request of kind {kind} ended with {status}");
        self.sync();
        Ok(())
    }

    fn execute(&mut self, chain: &[Piece]) -> Result<()> {
        match &mut self.driver {
            Driver::Split => {
                let form = if self.rng.one_in(2) { Form::Indirect } else { Form::Direct };
                self.device.execute(0, chain, form).map(drop)
            }
            Driver::Packed(driver) => {
                driver.offer(0, chain);
                self.device.ring(0).kick()?;
                let limit = Duration::from_secs(20);
                poll_until("a request", limit, || Ok(driver.take_used())).map(drop)
            }
        }
    }

    /// Takes marks and sends their pages again.
    fn sync(&mut self) {
        for page in self.log.take() {
            let place = self.device.place(page * LOG_PAGE_BYTES);
            let place = place.unwrap_or_else(|| panic!("page {page:#x} is no memory"));
            self.marked.insert(place);
            self.copy.update(place);
        }
    }

    /// Stops the ring, sends what is left, and compares.
    fn finish(&mut self) -> Result<()> {
        self.device.front_end.ask(request::GET_VRING_BASE, &[0; 8])?;
        self.sync();
        self.copy.check()?;
        let own = self.own();
        let allowed: BTreeSet<usize> =
            own.iter().flat_map(pages).chain(self.told.iter().copied()).collect();
        let too_many: Vec<&usize> = self.marked.difference(&allowed).collect();
        ensure!(too_many.is_empty(), "marked without reason: {too_many:x?}");
        let targets = pages(&self.targets()).filter(|page| self.marked.contains(page)).count();
        ensure!(targets > 100, "the test has read to {targets} pages only");
        Ok(())
    }
}

/// The pages that a range of the shared memory touches, by their places.
fn pages(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (range.start / PAGE..range.end.div_ceil(PAGE)).map(|page| page * PAGE)
}

fn check(program: &Program, layout: u64, direct: &str) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { direct, iothreads: Iothreads::One, ..Disk::new(&bench, "e0", 1) };
    disk.create(IMAGE_BYTES, 0x41)?;
    let server = disk.serve(program)?;
    let mut migrating = Migrating::connect(&disk, layout)?;
    let run = |migrating: &mut Migrating| {
        for _ in 0..20 {
            migrating.request()?;
        }
        ensure!(migrating.marked.is_empty(), "marks before the log was used");
        migrating.told.clear();
        migrating.begin()?;
        for _ in 0..REQUESTS {
            migrating.request()?;
        }
        migrating.finish()
    };
    run(&mut migrating).with_context(|| format!("log: {}", server.log()))?;
    drop(migrating);
    stop(server, &[&disk.socket()]).map(drop)
}

#[test]
fn a_copy_that_follows_the_marks_is_the_memory_of_a_guest_with_split_rings() {
    with(&ringloom(), |program| check(program, SPLIT, "on"));
    with(&ringloom(), |program| check(program, SPLIT & !feature::RING_EVENT_IDX, "off"));
}

#[test]
fn a_copy_that_follows_the_marks_is_the_memory_of_a_guest_with_packed_rings() {
    with(&ringloom(), |program| check(program, SPLIT | feature::RING_PACKED, "on"));
    let plain = SPLIT & !feature::RING_EVENT_IDX | feature::RING_PACKED;
    with(&ringloom(), |program| check(program, plain, "off"));
}

#[test]
fn a_copy_that_follows_the_marks_is_the_memory_on_a_host_without_io_uring() {
    with(&ringloom_without_io_uring(), |program| check(program, SPLIT, "on"));
}

/// The rig itself: the peer passes the same way. With EVENT_IDX it would not: it does not mark the page of the index at
/// which it wants the next kick, which with a ring of this size is one of its own.
#[test]
fn the_peer_marks_what_it_writes() {
    let layout = SPLIT & !feature::RING_EVENT_IDX;
    with(&Program::qemu_storage_daemon(), |program| check(program, layout, "off"));
}
