//! Attacks with what lies in a packed ring: descriptors, ids, wrap counters, events.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::poll_until;
use testkit::rawring::{Ack, Descriptor, Outcome, Piece, RawDevice, feature, flag, kind};

use super::rings::truncate_memory;
use super::{Target, attacks, shape};

/// An address in no region.
const NOWHERE: u64 = 0x55_0000_0000;
const LIMIT: Duration = Duration::from_secs(10);
/// The ring starts at slot 0 with wrap counter 0, so this marks an available descriptor and both bits clear a used one.
const AVAILABLE: u16 = 1 << 15;
const USED: u16 = 1 << 15 | 1 << 7;
/// Of the attacker's rings.
const SIZE: u16 = 64;

/// One descriptor of a packed ring.
#[derive(Clone, Copy)]
struct Packed {
    piece: Piece,
    id: u16,
    /// Beside those of the piece.
    flags: u16,
}

fn connect(target: &Target<'_>) -> Result<RawDevice> {
    let mut shape = shape();
    shape.features |= feature::RING_PACKED;
    let device = RawDevice::connect(target.socket, shape)?;
    ensure!(device.features & feature::RING_PACKED != 0, "packed rings are not offered");
    Ok(device)
}

/// Puts a descriptor into a slot; its flags are written last.
fn put(device: &RawDevice, slot: u16, it: Packed) {
    // The id lies where a split ring has its flags, and the flags where it has `next`.
    let Piece { address, length, flags } = it.piece;
    let flags = flags | it.flags;
    let descriptor = Descriptor { address, length, flags: it.id, next: flags };
    device.ring(0).set_descriptor(slot, &descriptor);
}

/// A correct chain with this id for the pieces, as far as there is one.
fn chain(pieces: &[Piece], id: u16) -> Vec<Packed> {
    let last = pieces.len() - 1;
    let of = |(index, piece): (usize, &Piece)| {
        let next = if index < last { flag::NEXT } else { 0 };
        Packed { piece: *piece, id, flags: AVAILABLE | next }
    };
    pieces.iter().enumerate().map(of).collect()
}

/// Puts the descriptors into the ring, the first one last, and kicks.
fn offer(device: &RawDevice, descriptors: &[Packed]) -> Result<()> {
    put_all(device, descriptors);
    device.ring(0).kick()
}

fn put_all(device: &RawDevice, descriptors: &[Packed]) {
    for (slot, descriptor) in (0..).zip(descriptors).skip(1) {
        put(device, slot, *descriptor);
    }
    put(device, 0, descriptors[0]);
}

/// Waits until slot 0 is used or the session over.
fn outcome(device: &RawDevice) -> Result<Outcome> {
    let [table, ..] = device.ring(0).offsets();
    poll_until("an answer or the end of the session", LIMIT, || {
        if device.memory.load_u16(table + 14) & USED == 0 {
            let status = device.status();
            return Ok(Some(Outcome::Done { status, written: 0 }));
        }
        Ok(device.has_ended()?.then_some(Outcome::Ended))
    })
}

/// The attacker's request may fail or its session end, but it must never succeed.
fn refused(device: &RawDevice, descriptors: &[Packed]) -> Result<()> {
    offer(device, descriptors)?;
    let outcome = outcome(device)?;
    ensure!(!outcome.is_ok(), "the request succeeded: {outcome:?}");
    Ok(())
}

fn pieces(device: &RawDevice, kind: u32) -> [Piece; 3] {
    let (header, status) = device.frame(kind, 1000);
    let flags = if kind == kind::IN { flag::WRITE } else { 0 };
    [header, device.data(0, 512, flags), status]
}

/// The rig itself: what the others spoil is answered.
fn a_correct_chain(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    offer(&device, &chain(&pieces(&device, kind::IN), 5))?;
    let outcome = outcome(&device)?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

fn pieces_outside_memory(target: &Target<'_>) -> Result<()> {
    let end = |device: &RawDevice| {
        let last = device.regions()[1];
        last.guest_address + last.size
    };
    for kind in [kind::IN, kind::OUT] {
        for place in 0..3 {
            for which in 0..4 {
                let device = connect(target)?;
                let mut pieces = pieces(&device, kind);
                match which {
                    0 => pieces[place].address = NOWHERE,
                    1 => pieces[place].address = end(&device),
                    2 => pieces[place].address = u64::MAX,
                    _ => pieces[place] = Piece { length: u32::MAX, ..pieces[place] },
                }
                // A status of any length ends with its last byte; a header may be followed by data.
                let context = || format!("type {kind}, piece {place}, {which}");
                refused(&device, &chain(&pieces, 0)).with_context(context)?;
            }
        }
    }
    Ok(())
}

/// A device that took every descriptor for a part of the chain would walk for ever.
fn chain_around_the_whole_ring(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    let piece = pieces(&device, kind::IN)[1];
    let endless = vec![Packed { piece, id: 0, flags: AVAILABLE | flag::NEXT }; SIZE.into()];
    refused(&device, &endless)
}

fn chain_without_its_end(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    let mut cut = chain(&pieces(&device, kind::IN), 0);
    cut[2].flags |= flag::NEXT;
    refused(&device, &cut)
}

/// Every descriptor is a chain of one, none of which is a request.
fn a_ring_full_of_single_descriptors(target: &Target<'_>) -> Result<()> {
    for same_id in [false, true] {
        let device = connect(target)?;
        let (header, _) = device.frame(kind::IN, 0);
        let single =
            |id| Packed { piece: header, id: if same_id { 0 } else { id }, flags: AVAILABLE };
        refused(&device, &(0..SIZE).map(single).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn id_out_of_range(target: &Target<'_>) -> Result<()> {
    for id in [SIZE, SIZE + 1, 0x7fff, u16::MAX] {
        let device = connect(target)?;
        refused(&device, &chain(&pieces(&device, kind::IN), id))
            .with_context(|| format!("id {id}"))?;
    }
    Ok(())
}

/// Two chains of one name, so that one completion answers for both.
fn one_id_twice(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    let one = chain(&pieces(&device, kind::IN), 3);
    let both = [&one[..], &one[..]].concat();
    offer(&device, &both)?;
    outcome(&device)?;
    target.others_go_on()
}

fn spoilt_indirect_tables(target: &Target<'_>) -> Result<()> {
    let spoilt = [
        ("of 17 bytes", 17, 0, true),
        ("of 0 bytes", 0, 0, true),
        ("of 4 GiB", u32::MAX - 15, 0, true),
        ("nowhere", 48, 0, false),
        ("with a successor", 48, flag::NEXT, true),
        ("that the device writes", 48, flag::WRITE, true),
        ("of zeroes", 48, 0, true),
    ];
    for (what, length, flags, inside) in spoilt {
        let device = connect(target)?;
        device.frame(kind::IN, 0);
        let address = if inside { device.data(8192, 0, 0).address } else { NOWHERE };
        let flags = flags | flag::INDIRECT | AVAILABLE;
        let piece = Piece { address, length, flags: 0 };
        refused(&device, &[Packed { piece, id: 0, flags }]).with_context(|| what.to_owned())?;
    }
    Ok(())
}

/// A table whose descriptors are tables again, the table itself.
fn nested_indirect_table(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    device.frame(kind::IN, 0);
    let address = device.data(0, 0, 0).address;
    let itself = Descriptor { address, length: 16, flags: 0, next: flag::INDIRECT };
    device.put(0, &itself.bytes());
    let piece = Piece { address, length: 16, flags: 0 };
    refused(&device, &[Packed { piece, id: 0, flags: flag::INDIRECT | AVAILABLE }])
}

fn rings_outside_memory(target: &Target<'_>) -> Result<()> {
    for index in 0..3 {
        for half in [false, true] {
            let device = connect(target)?;
            device.stop_ring(0)?;
            let mut addresses = device.ring(0).offsets().map(|offset| device.user_address(offset));
            let last = device.regions()[1];
            // Event areas have 4 bytes.
            let end = last.user_address + last.size;
            addresses[index] = if half { end - if index == 0 { 16 } else { 0 } } else { NOWHERE };
            if device.tell_ring_addresses(0, addresses)? == Ack::Done {
                device.front_end.wait_for_end().context("the server agreed")?;
            }
        }
    }
    Ok(())
}

/// Wishes for interrupts that the specification does not know: none of them stops the ring or the daemon.
fn spoilt_event_suppression(target: &Target<'_>) -> Result<()> {
    for (position, flags) in [(0xffff, 2), (SIZE, 2), (0x7fff, 2), (0, 3), (0xffff, 0xffff)] {
        let device = connect(target)?;
        let [_, _, driver] = device.ring(0).offsets();
        device.memory.store_u16(driver, position);
        device.memory.store_u16(driver + 2, flags);
        offer(&device, &chain(&pieces(&device, kind::IN), 0))?;
        outcome(&device)?;
    }
    target.others_go_on()
}

/// Descriptors are changed while they are served: back to available, and to anything.
fn descriptors_changed_while_served(target: &Target<'_>) -> Result<()> {
    for round in 0..50_u16 {
        let device = connect(target)?;
        let mut all = Vec::new();
        for id in 0..20 {
            all.extend(chain(&pieces(&device, kind::IN), id));
        }
        offer(&device, &all)?;
        for slot in 0..SIZE {
            let flags = slot.wrapping_mul(round).rotate_left(u32::from(round)) | AVAILABLE;
            put(&device, slot, Packed { flags, id: slot ^ round, ..all[usize::from(slot % 60)] });
        }
        device.ring(0).kick()?;
    }
    target.others_go_on()
}

fn memory_file_truncated(target: &Target<'_>) -> Result<()> {
    let device = connect(target)?;
    let descriptors = chain(&pieces(&device, kind::IN), 0);
    put_all(&device, &descriptors);
    truncate_memory(&device)?;
    device.ring(0).kick()?;
    device.front_end.wait_for_end()
}

fn gone_in_mid_request(target: &Target<'_>) -> Result<()> {
    for round in 0..20 {
        let device = connect(target)?;
        let (header, status) =
            device.frame(if round % 2 == 0 { kind::IN } else { kind::OUT }, 1024);
        let flags = if round % 2 == 0 { flag::WRITE } else { 0 };
        let pieces = [header, device.data(0, 256 << 10, flags), status];
        let all: Vec<Packed> = (0..20).flat_map(|id| chain(&pieces, id)).collect();
        offer(&device, &all)?;
    }
    Ok(())
}

attacks! {
    both {
    }
    ringloom {
        a_correct_chain,
        a_ring_full_of_single_descriptors,
        chain_around_the_whole_ring,
        chain_without_its_end,
        descriptors_changed_while_served,
        gone_in_mid_request,
        id_out_of_range,
        memory_file_truncated,
        nested_indirect_table,
        one_id_twice,
        pieces_outside_memory,
        rings_outside_memory,
        spoilt_event_suppression,
        spoilt_indirect_tables,
    }
}
