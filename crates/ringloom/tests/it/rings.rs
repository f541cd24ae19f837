//! What a correct but unusual front end may do: chains of every shape, interrupts on and off, stopping and starting.

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{
    BlockRequest, Form, Piece, RawDevice, RawShape, Region, feature, flag, kind, request,
};

use crate::support::{Disk, ringloom, stop, with};

const IMAGE_BYTES: usize = 4 << 20;

/// A server with one disk, and the disk's content.
struct Served<'a> {
    disk: Disk<'a>,
    content: Vec<u8>,
    server: Server,
}

fn served<'a>(program: &Program, bench: &'a Bench) -> Result<Served<'a>> {
    let disk = Disk::new(bench, "e0", 2);
    let content = disk.create(IMAGE_BYTES, 0x21)?;
    let server = disk.serve(program)?;
    Ok(Served { disk, content, server })
}

/// Runs a behaviour on a connected device; then the server must stop as if nothing had happened.
fn check(
    program: &Program,
    shape: RawShape,
    behaviour: impl FnOnce(&mut RawDevice, &[u8]) -> Result<()>,
) -> Result<()> {
    let bench = Bench::new()?;
    let served = served(program, &bench)?;
    let mut device = RawDevice::connect(&served.disk.socket(), shape)?;
    behaviour(&mut device, &served.content)
        .with_context(|| format!("log: {}", served.server.log()))?;
    drop(device);
    stop(served.server, &[&served.disk.socket()]).map(drop)
}

/// A request whose data lies in one piece at the start of the data area.
fn plain(kind: u32, sector: u64, piece: Piece) -> BlockRequest {
    BlockRequest { kind, sector, data: vec![piece], form: Form::Direct }
}

/// Reads one page at this sector in this form, and compares it.
fn read_page(
    device: &mut RawDevice,
    queue: u32,
    sector: u64,
    form: Form,
    expected: &[u8],
) -> Result<()> {
    device.put(0, &[0x5c; 4096]);
    let data = vec![device.data(0, 4096, flag::WRITE)];
    let outcome = device.request(queue, &BlockRequest { kind: kind::IN, sector, data, form })?;
    ensure!(outcome.is_ok(), "read at sector {sector}: {outcome:?}");
    let start = usize::try_from(sector * 512).expect("inside a small image");
    ensure!(device.get(0, 4096) == expected[start..start + 4096], "wrong bytes at sector {sector}");
    Ok(())
}

fn indirect_and_direct_chains(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    ensure!(device.features & feature::RING_INDIRECT_DESC != 0, "indirect is not offered");
    for round in 0..100 {
        let form = if round % 2 == 0 { Form::Indirect } else { Form::Direct };
        read_page(device, 0, round * 8, form, content)?;
    }
    Ok(())
}

/// The driver may split and join header, data and status as it likes (virtio 1.2, section 2.7.4).
fn any_layout_of_a_chain(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    let cut = |piece: Piece, at: u32| {
        let rest =
            Piece { address: piece.address + u64::from(at), length: piece.length - at, ..piece };
        [Piece { length: at, ..piece }, rest]
    };
    for form in [Form::Direct, Form::Indirect] {
        for at in [1, 4, 8, 15] {
            let (header, status) = device.frame(kind::IN, 64);
            let [first, rest] = cut(header, at);
            let data = device.data(7, 1024, flag::WRITE);
            let [left, right] = cut(data, 511);
            let outcome = device.execute(0, &[first, rest, left, right, status], form)?;
            ensure!(outcome.is_ok(), "header cut at {at}: {outcome:?}");
            ensure!(device.get(7, 1024) == content[64 * 512..66 * 512], "header cut at {at}");
        }
    }
    Ok(())
}

/// Header and data of a write in one descriptor; data and status of a read in one descriptor.
fn joined_descriptors(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    let mut bytes = vec![0; 16 + 512];
    bytes[..4].copy_from_slice(&kind::OUT.to_le_bytes());
    bytes[8..16].copy_from_slice(&100_u64.to_le_bytes());
    bytes[16..].fill(0x3d);
    device.put(0, &bytes);
    let (_, status) = device.frame(kind::OUT, 100);
    let outcome = device.execute(0, &[device.data(0, 528, 0), status], Form::Direct)?;
    ensure!(outcome.is_ok(), "write with joined header: {outcome:?}");
    let (header, _) = device.frame(kind::IN, 99);
    device.put(0, &[0xee; 1025]);
    device.execute(0, &[header, device.data(0, 1025, flag::WRITE)], Form::Direct)?;
    let found = device.get(0, 1025);
    ensure!(found[1024] == 0, "the status is the last byte: {:#x}", found[1024]);
    ensure!(
        found[..512] == content[99 * 512..100 * 512] && found[512..1024] == [0x3d; 512],
        "data"
    );
    Ok(())
}

/// With EVENT_IDX the device must interrupt when it passes the index the driver named, and without it always.
fn interrupts_come_when_asked(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    let has_event_index = device.features & feature::RING_EVENT_IDX != 0;
    for round in 0..200_u16 {
        // `read_page` waits for the interrupt, so a lost one is a test that ends at its deadline.
        read_page(device, u32::from(round % 2), u64::from(round), Form::Direct, content)?;
    }
    // Several requests at once, one interrupt named after the last of them.
    let (header, status) = device.frame(kind::IN, 0);
    let piece = device.data(0, 512, flag::WRITE);
    let ring = device.ring_mut(0);
    ring.take_calls()?;
    if has_event_index {
        ring.set_used_event(ring.used_next().wrapping_add(3));
    }
    for head in [0, 3, 6, 9] {
        ring.set_chain(head, &[header, piece, status]);
        ring.offer(head);
    }
    ring.kick()?;
    let mut heads = device.wait_called(0, 4)?;
    heads.sort_unstable();
    ensure!(heads == [0, 3, 6, 9], "used entries {heads:?}");
    Ok(())
}

fn get_id_gives_twenty_bytes(device: &mut RawDevice, _: &[u8]) -> Result<()> {
    device.put(0, &[0xee; 64]);
    let outcome = device.request(0, &plain(kind::GET_ID, 0, device.data(0, 20, flag::WRITE)))?;
    ensure!(outcome.is_ok(), "GET_ID: {outcome:?}");
    let id = device.get(0, 21);
    ensure!(id[20] == 0xee, "GET_ID wrote behind its buffer");
    let end = id.iter().position(|byte| *byte == 0).unwrap_or(20).min(20);
    ensure!(id[..end].iter().all(u8::is_ascii_graphic), "id {id:02x?}");
    Ok(())
}

/// GET_VRING_BASE stops a ring and says where; started there again, it goes on.
fn a_stopped_ring_goes_on_where_it_was(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    for page in 0..5 {
        read_page(device, 1, page * 8, Form::Direct, content)?;
    }
    let index = device.stop_ring(1)?;
    ensure!(index == 5, "stopped at {index} after five requests");
    // The other ring does not notice.
    read_page(device, 0, 8, Form::Direct, content)?;
    // A request offered to a stopped ring waits for its start.
    let (header, status) = device.frame(kind::IN, 16);
    let data = device.data(0, 512, flag::WRITE);
    device.ring(1).set_chain(0, &[header, data, status]);
    device.offer(1, 0)?;
    read_page(device, 0, 24, Form::Direct, content)?;
    ensure!(device.ring(1).used_index() == 5, "a stopped ring went on");
    let (header, status) = device.frame(kind::IN, 16);
    device.ring(1).set_chain(0, &[header, data, status]);
    device.start_ring(1, index)?;
    device.ring(1).kick()?;
    let outcome = device.outcome(1)?;
    ensure!(outcome.is_ok(), "after the start: {outcome:?}");
    ensure!(device.get(0, 512) == content[16 * 512..17 * 512], "wrong bytes after the start");
    Ok(())
}

/// Ring indices wrap at 2¹⁶ (virtio 1.2, section 2.7.6).
fn indices_wrap(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    device.stop_ring(0)?;
    device.ring_mut(0).restart(65_530);
    device.start_ring(0, 65_530)?;
    for page in 0..12 {
        read_page(device, 0, page * 8, Form::Direct, content)?;
    }
    let index = device.stop_ring(0)?;
    ensure!(index == 6, "stopped at {index} after the wrap");
    Ok(())
}

/// One more region is added, used and removed while the rings run.
fn regions_come_and_go(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    let slots = device.front_end.ask_word(request::GET_MAX_MEM_SLOTS)?;
    ensure!(slots >= 8, "{slots} memory slots");
    let extra = testkit::memory::SharedMemory::new(1 << 16)?;
    let region = Region {
        guest_address: 0x7_0000_0000,
        size: 1 << 16,
        user_address: u64::try_from(extra.address(0, 0).addr()).expect("an address"),
        file_offset: 0,
    };
    let piece = Piece { address: region.guest_address, length: 1024, flags: flag::WRITE };
    for _ in 0..3 {
        device.front_end.must(request::ADD_MEM_REG, &region.single(), &[extra.file()])?;
        extra.fill(0, 1024, 0);
        let outcome = device.request(0, &plain(kind::IN, 32, piece))?;
        ensure!(outcome.is_ok(), "read into the new region: {outcome:?}");
        ensure!(extra.read(0, 1024) == content[32 * 512..34 * 512], "wrong bytes in the region");
        device.front_end.must(request::REM_MEM_REG, &region.single(), &[])?;
        read_page(device, 0, 0, Form::Direct, content)?;
    }
    Ok(())
}

/// A whole new table replaces the old one; rings and data keep working from it.
fn a_new_memory_table_is_taken(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    read_page(device, 0, 0, Form::Direct, content)?;
    let index = device.stop_ring(0)?;
    device.stop_ring(1)?;
    let table = Region::table(&device.regions());
    let fds = [device.memory.file(), device.memory.file()];
    device.front_end.must(request::SET_MEM_TABLE, &table, &fds)?;
    device.start_ring(0, index)?;
    device.start_ring(1, 0)?;
    read_page(device, 0, 8, Form::Direct, content)?;
    read_page(device, 1, 16, Form::Indirect, content)
}

fn the_device_is_reset_and_used_again(device: &mut RawDevice, content: &[u8]) -> Result<()> {
    read_page(device, 0, 0, Form::Direct, content)?;
    device.front_end.must(request::RESET_DEVICE, &[], &[])?;
    device.front_end.must(request::SET_FEATURES, &device.features.to_le_bytes(), &[])?;
    let table = Region::table(&device.regions());
    let fds = [device.memory.file(), device.memory.file()];
    device.front_end.must(request::SET_MEM_TABLE, &table, &fds)?;
    for queue in 0..2 {
        device.ring_mut(queue).restart(0);
        device.start_ring(queue, 0)?;
        read_page(device, queue, 8, Form::Direct, content)?;
    }
    Ok(())
}

/// Both positions of a packed ring and their wrap counters come back as they were set. The ring is empty in each round.
fn a_packed_ring_keeps_its_base(device: &mut RawDevice, _: &[u8]) -> Result<()> {
    ensure!(device.features & feature::RING_PACKED != 0, "packed rings are not offered");
    let state = |base: u32| [1_u32.to_le_bytes(), base.to_le_bytes()].concat();
    let front_end = &device.front_end;
    for base in [0, 0x8000_8000, 0x8005_8005, 0x003f_003f, 0x803f_803f] {
        front_end.ask(request::GET_VRING_BASE, &state(0))?;
        front_end.must(request::SET_VRING_BASE, &state(base), &[])?;
        device.send_ring_fd(request::SET_VRING_KICK, 1, device.ring(1).kick_fd())?;
        let reply = front_end.ask(request::GET_VRING_BASE, &state(0))?;
        ensure!(reply == state(base), "base {base:#x} came back as {reply:02x?}");
    }
    Ok(())
}

/// After a client has left, or has just vanished, the next one finds everything as new.
fn clients_follow_each_other(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let served = served(program, &bench)?;
    for round in 0..10_u64 {
        let shape = RawShape { queues: 2, ..RawShape::default() };
        let mut device = RawDevice::connect(&served.disk.socket(), shape)?;
        read_page(&mut device, 1, round * 8, Form::Direct, &served.content)?;
        if round % 2 == 0 {
            device.stop_ring(0)?;
            device.stop_ring(1)?;
        }
    }
    stop(served.server, &[&served.disk.socket()]).map(drop)
}

fn two_queues() -> RawShape {
    RawShape { queues: 2, ..RawShape::default() }
}

/// The same without event suppression by index.
fn plain_interrupts() -> RawShape {
    let features = RawShape::default().features & !feature::RING_EVENT_IDX;
    RawShape { features, ..two_queues() }
}

fn two_packed_queues() -> RawShape {
    let features = RawShape::default().features | feature::RING_PACKED;
    RawShape { features, ..two_queues() }
}

/// One test per behaviour, for ringloom and for the peer.
macro_rules! behaviours {
    ($($name:ident: $shape:ident, $behaviour:ident;)*) => {
        mod by_ringloom {
            $(#[test] fn $name() {
                super::with(&super::ringloom(), |program| {
                    super::check(program, super::$shape(), super::$behaviour)
                });
            })*
        }
        mod by_the_peer {
            $(#[test] fn $name() {
                super::with(&super::Program::qemu_storage_daemon(), |program| {
                    super::check(program, super::$shape(), super::$behaviour)
                });
            })*
        }
    };
}

behaviours! {
    indirect_and_direct_chains_are_read: two_queues, indirect_and_direct_chains;
    chains_may_be_cut_anywhere: two_queues, any_layout_of_a_chain;
    header_data_and_status_may_share_descriptors: two_queues, joined_descriptors;
    interrupts_come_with_event_index: two_queues, interrupts_come_when_asked;
    interrupts_come_without_event_index: plain_interrupts, interrupts_come_when_asked;
    the_id_is_told: two_queues, get_id_gives_twenty_bytes;
    a_ring_is_stopped_and_started: two_queues, a_stopped_ring_goes_on_where_it_was;
    ring_indices_wrap: two_queues, indices_wrap;
    regions_are_added_and_removed: two_queues, regions_come_and_go;
    the_memory_table_is_replaced: two_queues, a_new_memory_table_is_taken;
}

/// The peer does not know RESET_DEVICE.
#[test]
fn the_device_is_reset() {
    with(&ringloom(), |program| check(program, two_queues(), the_device_is_reset_and_used_again));
}

/// The peer has no packed rings.
#[test]
fn a_packed_ring_is_stopped_and_started() {
    with(&ringloom(), |program| check(program, two_packed_queues(), a_packed_ring_keeps_its_base));
}

#[test]
fn a_new_client_is_served_after_the_old_one_left() {
    with(&ringloom(), clients_follow_each_other);
}

#[test]
fn the_peer_serves_a_new_client_after_the_old_one_left() {
    with(&Program::qemu_storage_daemon(), clients_follow_each_other);
}
