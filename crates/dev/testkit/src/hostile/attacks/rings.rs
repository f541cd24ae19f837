//! Attacks with what lies in a ring: garbage, and requests that are right and cost as much as they can.

use std::time::Duration;

use anyhow::Result;

use super::{Arena, Attack, Victim, offer_many, read_of, wait_used};
use crate::rawring::{Descriptor, RawDevice, RawShape, feature, kind};
use crate::rng::Rng;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "garbage in split rings", victim: Victim::Raw, run: split_garbage },
    Attack { name: "garbage in packed rings", victim: Victim::Other, run: packed_garbage },
    Attack { name: "2 GiB reads of nothing (7)", victim: Victim::Null, run: zeroes_of_null },
    Attack {
        name: "2 GiB reads of an empty image (7)",
        victim: Victim::Empty,
        run: zeroes_of_qcow2,
    },
    Attack { name: "kicks without requests", victim: Victim::Other, run: kicks },
];

/// The longest read: 2 GiB less a sector.
const READ_BYTES_MAX: u64 = (2 << 30) - 512;
/// Requests that come at once.
const BATCH: u16 = 64;
/// Devices that one round of garbage spoils.
const DEVICES: u32 = 10;
/// How long a batch of costly requests is waited for.
const BATCH_LIMIT: Duration = Duration::from_secs(3);

fn split_garbage(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    garbage(arena, rng, Victim::Raw, 0)
}

fn packed_garbage(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    garbage(arena, rng, Victim::Other, feature::RING_PACKED)
}

/// Descriptors that are right now and then, in tables, chains and loops, and indices that jump.
fn garbage(arena: &Arena<'_>, rng: &mut Rng, victim: Victim, features: u64) -> Result<()> {
    for _ in 0..DEVICES {
        let shape = RawShape { queues: 2, ..RawShape::default() };
        let shape = RawShape { features: shape.features | features, ..shape };
        let mut device = arena.device_of(victim, shape)?;
        for _ in 0..50 {
            if device.has_ended()? {
                break;
            }
            device.frame([kind::IN, kind::OUT, kind::FLUSH][rng.index(3)], rng.below(8192));
            for queue in 0..2 {
                spoil(&mut device, queue, rng)?;
            }
        }
    }
    arena.others_go_on();
    Ok(())
}

/// Changes some descriptors of a ring, offers some of them, and kicks.
fn spoil(device: &mut RawDevice, queue: u32, rng: &mut Rng) -> Result<()> {
    let size = device.ring(queue).size();
    let any = |rng: &mut Rng| u16::try_from(rng.below(1 << 16)).expect("16 bits");
    for _ in 0..16 {
        let (header, status) = (device.data(0, 16, 0), device.data(64, 1, 2));
        let data = device.data(rng.index(1 << 20), 512, 0);
        let mut piece = [header, data, status][rng.index(3)];
        match rng.below(8) {
            0 => piece.address = rng.next_u64(),
            1 => piece.length = u32::try_from(rng.below(1 << 32)).expect("32 bits"),
            2 => piece.address = device.regions()[0].guest_address,
            _ => {}
        }
        let (flags, next) = match rng.below(4) {
            0 => (any(rng), any(rng)),
            1 => (any(rng) & 7, any(rng) % size),
            // Of a packed ring these are the id and the flags.
            2 => (any(rng) % size, any(rng) & 0x8087),
            _ => (1, any(rng) % size),
        };
        let descriptor = Descriptor { address: piece.address, length: piece.length, flags, next };
        let ring = device.ring(queue);
        ring.set_descriptor(any(rng) % size, &descriptor);
        if rng.one_in(50) {
            ring.set_available_index(any(rng));
        }
        let head = if rng.one_in(50) { any(rng) } else { any(rng) % size };
        if rng.one_in(3) {
            device.ring_mut(queue).offer(head);
        }
    }
    device.ring(queue).kick()
}

/// Batches of the longest reads on both queues, where nothing has to be read. The client leaves with most of them open.
fn zeroes(arena: &Arena<'_>, victim: Victim) -> Result<()> {
    let mut device = arena.device(victim)?;
    let read = read_of(&device, 0, READ_BYTES_MAX);
    for queue in 0..2 {
        offer_many(&mut device, queue, &read, BATCH)?;
    }
    arena.others_go_on();
    wait_used(&device, 1, BATCH_LIMIT)
}

fn zeroes_of_null(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    zeroes(arena, Victim::Null)
}

fn zeroes_of_qcow2(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    zeroes(arena, Victim::Empty)
}

fn kicks(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let device = arena.device(Victim::Other)?;
    for _ in 0..20_000 {
        device.ring(0).kick()?;
    }
    arena.others_go_on();
    Ok(())
}
