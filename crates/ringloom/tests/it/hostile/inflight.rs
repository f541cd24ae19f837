//! Attacks with the in-flight region: of another shape, spoilt, stale, cut off, or no memory at all.
//!
//! Each is given to a session of its own, whose rings and memory are new: to the daemon, the client of an earlier boot.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::deadline::poll_until;
use testkit::memory::SharedMemory;
use testkit::rawring::{
    Ack, PackedDriver, Piece, RawDevice, SessionEnded, feature, flag, kind, request,
};
use testkit::rng::Rng;

use super::{Target, attacks, shape};

const LIMIT: Duration = Duration::from_secs(10);
/// Room for any region here.
const REGION_BYTES: usize = 64 << 10;
/// The queues and descriptors that a good region is for.
const QUEUES: u16 = 2;
const SIZE: u16 = 64;
/// What the daemon makes for that: two parts of 16 bytes and 16 for each descriptor, at multiples of 64.
const REGION_OF_OURS: u64 = 2 * 1088;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Split,
    Packed,
}

const LAYOUTS: [Layout; 2] = [Layout::Split, Layout::Packed];

impl Layout {
    /// Bytes of a part's header, and of each of its entries (vhost-user, "Inflight I/O tracking").
    fn sizes(self) -> (usize, usize) {
        match self {
            Self::Split => (16, 16),
            Self::Packed => (32, 32),
        }
    }

    fn entry(self, entry: usize, field: usize) -> usize {
        let (header, bytes) = self.sizes();
        header + entry * bytes + field
    }
}

/// What SET_INFLIGHT_FD says.
#[derive(Clone, Copy, Debug)]
struct Description {
    bytes: u64,
    offset: u64,
    queues: u16,
    size: u16,
}

impl Description {
    fn good() -> Self {
        Self { bytes: REGION_BYTES as u64, offset: 0, queues: QUEUES, size: SIZE }
    }

    fn payload(self) -> Vec<u8> {
        let mut payload = [self.bytes, self.offset].map(u64::to_le_bytes).concat();
        payload.extend([self.queues, self.size, 0, 0].map(u16::to_le_bytes).concat());
        payload
    }
}

/// A client whose rings are tracked in this region; nothing if the server does not have it.
fn connect(
    target: &Target<'_>,
    layout: Layout,
    fd: BorrowedFd<'_>,
    description: Description,
) -> Result<Option<RawDevice>> {
    let mut shape = shape();
    if layout == Layout::Packed {
        shape.features |= feature::RING_PACKED;
    }
    let device = RawDevice::negotiated(target.socket, shape)?;
    let payload = description.payload();
    if device.front_end.tell(request::SET_INFLIGHT_FD, &payload, &[fd])? != Ack::Done {
        return Ok(None);
    }
    // An error is a refusal; that the daemon lives is looked at afterwards.
    Ok(device.share_and_start().is_ok().then_some(device))
}

fn offer_once(device: &mut RawDevice, layout: Layout) -> Result<()> {
    let (header, status) = device.frame(kind::IN, 0);
    let pieces: [Piece; 3] = [header, device.data(0, 4096, flag::WRITE), status];
    match layout {
        Layout::Split => {
            device.ring(0).set_chain(0, &pieces);
            device.ring_mut(0).offer(0);
        }
        Layout::Packed => PackedDriver::new(&device.memory, device.ring(0)).offer(0, &pieces),
    }
    device.ring(0).kick()
}

/// The rings come to rest with a word, or the session ends; it does not hang.
fn stops_or_ends(device: &RawDevice) -> Result<()> {
    for queue in 0..u32::from(QUEUES) {
        match device.stop_ring(queue) {
            Ok(_) => {}
            Err(error) if error.is::<SessionEnded>() => return Ok(()),
            Err(error) => return Err(error.context(format!("stop queue {queue}"))),
        }
    }
    Ok(())
}

/// Offers one read and waits until it was answered or the session is over; whether it was answered.
fn use_ring(device: &mut RawDevice, layout: Layout) -> Result<bool> {
    offer_once(device, layout)?;
    poll_until("an answer or the end of the session", LIMIT, || {
        Ok(if device.status() == 0 { Some(true) } else { device.has_ended()?.then_some(false) })
    })
}

/// A region that was used for one request, with more in flight if the disk is slow.
fn used_region(target: &Target<'_>, layout: Layout) -> Result<SharedMemory> {
    let region = SharedMemory::new(REGION_BYTES)?;
    let device = connect(target, layout, region.file(), Description::good())?;
    let mut device = device.context("a region of zeroes was refused")?;
    ensure!(use_ring(&mut device, layout)?, "a good region was refused");
    ensure!(region.load_u16(8) == 1, "the region was not used");
    Ok(region)
}

/// Takes a region that was changed; it may be refused, or served if it still says something sensible. What becomes of
/// the client's own requests is its affair, but its rings can be stopped, or its session is over.
fn give(target: &Target<'_>, layout: Layout, region: &SharedMemory, what: &str) -> Result<()> {
    let given = || -> Result<()> {
        match connect(target, layout, region.file(), Description::good())? {
            Some(mut device) => {
                offer_once(&mut device, layout)?;
                stops_or_ends(&device)
            }
            None => Ok(()),
        }
    };
    given().with_context(|| format!("{layout:?}, {what}"))
}

fn used_for_another_shape(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        let region = used_region(target, layout)?;
        let good = Description::good();
        let other = [
            Description { size: 32, ..good },
            Description { size: 128, ..good },
            Description { queues: 1, ..good },
            Description { queues: 256, ..good },
            Description { bytes: 16, ..good },
            Description { bytes: 1, ..good },
            Description { offset: 64, bytes: 4096, ..good },
            Description { offset: 8, bytes: 32 << 10, ..good },
        ];
        for description in other {
            // A shape that fits by chance is served; nothing in it may hurt anybody.
            if let Some(mut device) = connect(target, layout, region.file(), description)? {
                offer_once(&mut device, layout)?;
                stops_or_ends(&device).with_context(|| format!("{description:?}"))?;
            }
        }
        for description in [
            Description { queues: 0, ..good },
            Description { queues: 257, ..good },
            Description { size: 0, ..good },
            Description { size: u16::MAX, ..good },
            Description { bytes: 0, ..good },
            Description { bytes: u64::MAX, ..good },
            Description { offset: u64::MAX, ..good },
            Description { offset: 1, bytes: 32 << 10, ..good },
            Description { offset: 1 << 40, ..good },
            Description { bytes: good.bytes + 1, ..good },
        ] {
            let device = connect(target, layout, region.file(), description)?;
            ensure!(device.is_none(), "{layout:?}: {description:?} was taken");
        }
    }
    target.others_go_on()
}

/// A region that was used for rings of the other layout.
fn used_for_another_layout(target: &Target<'_>) -> Result<()> {
    for (first, second) in [(Layout::Split, Layout::Packed), (Layout::Packed, Layout::Split)] {
        let region = used_region(target, first)?;
        give(target, second, &region, "of the other layout")?;
    }
    target.others_go_on()
}

/// A region of an earlier boot: the rings are new, the region has moved on and has requests in flight.
fn stale(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        for marked in [0, 1, 63, 64] {
            let region = used_region(target, layout)?;
            for entry in 0..marked {
                region.write(layout.entry(entry, 0), &[1]);
                region.store_u16(layout.entry(entry, 8), u16::try_from(entry).context("small")?);
            }
            give(target, layout, &region, &format!("{marked} marks"))?;
        }
    }
    target.others_go_on()
}

/// Marks of chains that are not there: the table of the new ring is all zero, or holds something else.
fn marks_of_no_chains(target: &Target<'_>) -> Result<()> {
    for head in 0..usize::from(SIZE) {
        // A region that fits the new ring: used, nothing shown.
        let region = SharedMemory::new(REGION_BYTES)?;
        region.store_u16(8, 1);
        region.store_u16(10, SIZE);
        region.write(Layout::Split.entry(head, 0), &[1]);
        give(target, Layout::Split, &region, &format!("chain {head}"))?;
    }
    target.others_go_on()
}

fn counters_that_repeat(target: &Target<'_>) -> Result<()> {
    for counter in [0, 7, u16::MAX] {
        let region = SharedMemory::new(REGION_BYTES)?;
        region.store_u16(8, 1);
        region.store_u16(10, SIZE);
        for head in 0..usize::from(SIZE) {
            region.write(Layout::Split.entry(head, 0), &[1]);
            for word in 0..4 {
                region.store_u16(Layout::Split.entry(head, 8 + word * 2), counter);
            }
        }
        give(target, Layout::Split, &region, &format!("all counters are {counter:#x}"))?;
    }
    target.others_go_on()
}

/// Lists that lead in circles or out of the region.
fn links_that_loop(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        // Of a split ring: last batch head and used index. Of a packed one: free heads, then used positions.
        let headers: &[(usize, u16)] = match layout {
            Layout::Split => &[(14, 0xfffe), (14, 0xffc0), (14, 1), (12, SIZE), (12, u16::MAX)],
            Layout::Packed => &[(12, SIZE), (14, SIZE), (14, 3), (16, SIZE), (18, 9), (20, 0x0202)],
        };
        for (field, value) in headers {
            for link in [0, 1, SIZE, u16::MAX] {
                let region = used_region(target, layout)?;
                region.store_u16(*field, *value);
                let next = if layout == Layout::Split { 6 } else { 2 };
                for entry in 0..usize::from(SIZE) {
                    region.store_u16(layout.entry(entry, next), link);
                }
                give(target, layout, &region, &format!("field {field} {value}, links {link}"))?;
            }
        }
    }
    target.others_go_on()
}

/// Saved descriptors of a packed ring that point anywhere.
fn saved_chains_of_anything(target: &Target<'_>) -> Result<()> {
    let layout = Layout::Packed;
    for flags in [0, 1, 2, 4, 5, 6, u16::MAX] {
        let region = used_region(target, layout)?;
        for (field, value) in [(2, 64), (4, 0), (6, 1), (16, 0), (18, flags)] {
            region.store_u16(layout.entry(0, field), value);
        }
        region.write(layout.entry(0, 20), &u32::MAX.to_le_bytes());
        region.write(layout.entry(0, 24), &u64::MAX.to_le_bytes());
        region.write(layout.entry(0, 0), &[1]);
        // Entry 0 is in use, so the free list begins behind it.
        region.store_u16(12, 1);
        region.store_u16(14, 1);
        give(target, layout, &region, &format!("flags {flags:#x}"))?;
    }
    target.others_go_on()
}

/// Bytes that mean nothing, many times.
fn random_bytes(target: &Target<'_>) -> Result<()> {
    for seed in 0..60 {
        let layout = LAYOUTS[usize::from(seed % 2 == 0)];
        let mut rng = Rng::new(seed);
        let region = used_region(target, layout)?;
        for _ in 0..1 + rng.index(8) {
            let place = rng.index(layout.entry(SIZE.into(), 0));
            let byte = u8::try_from(rng.below(66)).context("small")?;
            region.write(place, &[byte]);
        }
        give(target, layout, &region, &format!("seed {seed}"))?;
    }
    target.others_go_on()
}

/// Whole regions of random bytes, behind a header that is taken.
fn random_regions(target: &Target<'_>) -> Result<()> {
    for seed in 0..40 {
        let layout = LAYOUTS[usize::from(seed % 2 == 0)];
        let region = SharedMemory::new(REGION_BYTES)?;
        let mut bytes = vec![0; 4096];
        Rng::new(seed).fill(&mut bytes);
        region.write(16, &bytes);
        region.store_u16(8, 1);
        region.store_u16(10, SIZE);
        give(target, layout, &region, &format!("seed {seed}"))?;
    }
    target.others_go_on()
}

fn cut(file: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = File::options().write(true).open(path).context("open the region")?;
    file.set_len(bytes).context("cut the region")
}

/// The region's file is cut while requests are noted there.
fn cut_while_served(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        let region = SharedMemory::new(REGION_BYTES)?;
        let device = connect(target, layout, region.file(), Description::good())?;
        let mut device = device.context("a good region was refused")?;
        cut(region.file(), 0)?;
        use_ring(&mut device, layout)?;
        device.front_end.wait_for_end().with_context(|| format!("{layout:?}"))?;
    }
    target.others_go_on()
}

/// The region is cut before the rings begin, so that recovering reads what is not there.
fn cut_before_it_is_read(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        let mut shape = shape();
        if layout == Layout::Packed {
            shape.features |= feature::RING_PACKED;
        }
        let region = SharedMemory::new(REGION_BYTES)?;
        let device = RawDevice::negotiated(target.socket, shape)?;
        let payload = Description::good().payload();
        device.front_end.must(request::SET_INFLIGHT_FD, &payload, &[region.file()])?;
        cut(region.file(), 0)?;
        let started = device.share_and_start();
        ensure!(started.is_err(), "{layout:?}: a region that is gone was taken");
    }
    target.others_go_on()
}

/// The region lies in the guest's own memory, in the middle of the ring: the daemon's notes and the ring are one.
fn inside_the_guests_memory(target: &Target<'_>) -> Result<()> {
    for layout in LAYOUTS {
        for offset in [0, 64, 1024, 4096] {
            let mut shape = shape();
            if layout == Layout::Packed {
                shape.features |= feature::RING_PACKED;
            }
            let mut device = RawDevice::negotiated(target.socket, shape)?;
            let description = Description { offset, bytes: 8192, ..Description::good() };
            let payload = description.payload();
            let file = device.memory.file();
            let taken = device.front_end.tell(request::SET_INFLIGHT_FD, &payload, &[file])?;
            if taken == Ack::Done && device.share_and_start().is_ok() {
                offer_once(&mut device, layout)?;
                stops_or_ends(&device)?;
            }
        }
    }
    target.others_go_on()
}

/// Descriptors that cannot be mapped, or not for writing, or have no size.
fn files_of_another_kind(target: &Target<'_>) -> Result<()> {
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let (pipe, _other_end) = std::io::pipe().context("pipe")?;
    let zero = File::open("/dev/zero").context("open /dev/zero")?;
    let directory = File::open("/proc/self").context("open a directory")?;
    let read_only = File::open("/proc/self/exe").context("open a file for reading")?;
    let socket = std::os::unix::net::UnixStream::connect(target.read_only).context("connect")?;
    let files: [(&str, BorrowedFd<'_>); 6] = [
        ("an eventfd", bell.as_fd()),
        ("a pipe", pipe.as_fd()),
        ("/dev/zero", zero.as_fd()),
        ("a directory", directory.as_fd()),
        ("a file that cannot be written", read_only.as_fd()),
        ("a socket", socket.as_fd()),
    ];
    for (what, fd) in files {
        let small = Description { bytes: 4096, ..Description::good() };
        if connect(target, Layout::Split, fd, small)?.is_some() {
            bail!("{what} was taken for a region");
        }
    }
    target.others_go_on()
}

/// No descriptor at all, and the messages in any order.
fn messages_out_of_order(target: &Target<'_>) -> Result<()> {
    let good = Description::good().payload();
    let device = target.device()?;
    device.front_end.send(request::SET_INFLIGHT_FD, &good, &[])?;
    device.front_end.wait_for_end().context("no descriptor")?;
    // In mid-session, while rings are served, and again and again.
    let mut device = target.device()?;
    for _ in 0..50 {
        let (_, fd) = device.front_end.ask_fd(request::GET_INFLIGHT_FD, &good)?;
        let mut shape = Description::good();
        shape.bytes = REGION_OF_OURS;
        device.front_end.must(request::SET_INFLIGHT_FD, &shape.payload(), &[fd.as_fd()])?;
    }
    ensure!(use_ring(&mut device, Layout::Split)?, "the ring is not served any more");
    // One for queues that are too large for it, while these are served.
    let (_, fd) = device.front_end.ask_fd(request::GET_INFLIGHT_FD, &good)?;
    let small = Description { size: 4, bytes: REGION_OF_OURS, ..Description::good() };
    device.front_end.tell(request::SET_INFLIGHT_FD, &small.payload(), &[fd.as_fd()])?;
    target.others_go_on()
}

attacks! {
    both {
    }
    ringloom {
        counters_that_repeat,
        cut_before_it_is_read,
        cut_while_served,
        files_of_another_kind,
        inside_the_guests_memory,
        links_that_loop,
        marks_of_no_chains,
        messages_out_of_order,
        random_bytes,
        random_regions,
        saved_chains_of_anything,
        stale,
        used_for_another_layout,
        used_for_another_shape,
    }
}
