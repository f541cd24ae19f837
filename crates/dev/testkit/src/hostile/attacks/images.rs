//! Attacks with what is in an image, or below it: pieces without end, compressed clusters, broken tables, a disk that hangs.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Arena, Attack, PATIENCE, Victim, offer_many, read_of, wait_used};
use crate::deadline::poll_until;
use crate::hostile::disks::{COMPRESSED_BYTES, RAW_BYTES};
use crate::rawring::{RawShape, flag, kind};
use crate::rng::Rng;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "64 reads in pieces (4)", victim: Victim::Shreds, run: shreds },
    Attack {
        name: "compressed clusters by sectors (16)",
        victim: Victim::Compressed,
        run: compressed,
    },
    Attack { name: "tables that name no cluster (15)", victim: Victim::Damaged, run: damaged },
    Attack {
        name: "4200 requests on a disk that hangs (8)",
        victim: Victim::Hanging,
        run: hanging,
    },
];

/// Requests on a disk that hangs: more than an iothread may have in flight.
const HANGING: u16 = 4200;

/// A batch of 64 requests of a thousand pieces each. Larger ones are carried out to their end when the client has left,
/// which takes longer than a campaign has.
fn shreds(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    const BYTES: u64 = 4 << 20;
    let mut device = arena.device(Victim::Shreds)?;
    let read = read_of(&device, rng.below(1 << 20), BYTES);
    offer_many(&mut device, 0, &read, 64)?;
    arena.others_go_on();
    wait_used(&device, 1, Duration::from_secs(1))
}

/// Each sector is of another cluster than the one before, and 2 MiB have to be read and unpacked for it.
fn compressed(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let shape = RawShape { queues: 2, queue_size: 1024, ..RawShape::default() };
    let mut device = arena.device_of(Victim::Compressed, shape)?;
    for queue in 0..2 {
        let sector = rng.below(COMPRESSED_BYTES / 512);
        let read = read_of(&device, sector, 512);
        offer_many(&mut device, queue, &read, 1024)?;
    }
    arena.others_go_on();
    wait_used(&device, 1024, PATIENCE)
}

/// Each request fails, and the daemon has something to say about it.
fn damaged(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Damaged)?;
    for round in 0..200_u16 {
        let (kind, flags) = if rng.one_in(4) { (kind::OUT, 0) } else { (kind::IN, flag::WRITE) };
        let (header, status) = device.frame(kind, rng.below(RAW_BYTES / 512 - 8));
        let pieces = [header, device.data(0, 4096, flags), status];
        for queue in 0..2 {
            offer_many(&mut device, queue, &pieces, 32)?;
        }
        wait_used(&device, (round + 1).wrapping_mul(32), Duration::from_secs(1))?;
    }
    arena.others_go_on();
    Ok(())
}

/// The disk answers again when the attacker has seen that the others go on.
fn hanging(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let disk = arena.disks.slow.as_ref().context("no disk that hangs")?;
    let shape = RawShape { queues: 1, queue_size: 8192, ..RawShape::default() };
    let mut device = arena.device_of(Victim::Hanging, shape)?;
    disk.hang();
    let result = (|| -> Result<()> {
        let read = read_of(&device, 0, 4096);
        offer_many(&mut device, 0, &read, HANGING)?;
        poll_until("requests that hang", PATIENCE, || Ok((disk.in_flight() > 0).then_some(())))?;
        arena.others_go_on();
        Ok(())
    })();
    disk.recover();
    result?;
    wait_used(&device, HANGING, PATIENCE)
}
