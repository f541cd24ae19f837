//! The attacks of a campaign: one table of all, and a deck from which each attacker draws.
//!
//! Where it stands: a thread for each attacker draws, attacks, and draws again, as long as there are attackers.
//!
//! Invariants: a deck has each attack once, so in a long run each comes as often as any other; two attackers are never on
//! one disk. An attack may fail in any way, that is its own affair; but one that never does what it should is an error of
//! the rig (`Deck::judge`).
//! Limits: an attack ends by itself after a few seconds, whatever the daemon does.
//! Not here: upgrades and kills, which are the operator's.

mod floods;
mod images;
mod memory;
mod messages;
mod rings;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::STALL_MAX;
use super::bystander::Bystander;
use super::disks::{Disks, VICTIM_QUEUES, Victim};
use super::service::{Phase, Service};
use crate::deadline::{Deadline, now, poll_until};
use crate::rawring::{Descriptor, Piece, RawDevice, RawShape, Span, flag, kind};
use crate::rng::Rng;

/// How long an attacker waits for what it has asked for.
const PATIENCE: Duration = Duration::from_secs(4);
/// So many tries that fail are no chance any more: a daemon that is killed takes its attackers along.
const TRIES_MIN: u32 = 10;
/// Where a test's indirect table lies in the data memory; data lies before it.
const TABLE: usize = 3 << 20;

/// One way to attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// The disk that it needs for itself.
    victim: Victim,
    run: fn(&Arena<'_>, &mut Rng) -> Result<()>,
}

/// All attacks.
fn all() -> Vec<Attack> {
    [memory::ATTACKS, rings::ATTACKS, images::ATTACKS, messages::ATTACKS, floods::ATTACKS].concat()
}

/// What an attack is given.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub(super) disks: &'a Disks,
    pub(super) service: &'a Service,
    pub(super) bystanders: &'a [Bystander<'a>],
}

impl Arena<'_> {
    /// A correct device on a disk, to be spoilt.
    fn device(&self, victim: Victim) -> Result<RawDevice> {
        self.device_of(victim, RawShape { queues: VICTIM_QUEUES, ..RawShape::default() })
    }

    fn device_of(&self, victim: Victim, shape: RawShape) -> Result<RawDevice> {
        RawDevice::connect(&self.disks.socket(victim), shape)
    }

    /// A client that is still there when all attackers should have left.
    pub(super) fn client_that_stays(&self) -> Result<RawDevice> {
        self.device(Victim::Raw)
    }

    /// Waits until each bystander has done its I/O, with the attacker still here.
    fn others_go_on(&self) {
        let start = now();
        let before: Vec<u64> = self.bystanders.iter().map(Bystander::rounds).collect();
        let waited = poll_until("the bystanders", STALL_MAX, || {
            let goes_on = |(it, before): (&Bystander<'_>, &u64)| it.rounds() >= before + 2;
            let all = self.bystanders.iter().zip(&before).all(goes_on);
            Ok((all || self.service.has_failed()).then_some(()))
        });
        if waited.is_err() {
            let still = |(it, before): (&Bystander<'_>, &u64)| {
                (it.rounds() < before + 2).then(|| it.name())
            };
            let names: Vec<&str> = self.bystanders.iter().zip(&before).filter_map(still).collect();
            let what = format!("{names:?} stood still for {STALL_MAX:?} during an attack");
            self.service.suspect(what, Span { start, end: now() });
        }
    }
}

/// Lays one request out behind an indirect table, and offers it with so many heads of a queue.
fn offer_many(device: &mut RawDevice, queue: u32, pieces: &[Piece], heads: u16) -> Result<()> {
    offer_heads(device, queue, pieces, 0..heads)
}

/// The same with these heads.
fn offer_heads(
    device: &mut RawDevice,
    queue: u32,
    pieces: &[Piece],
    heads: Range<u16>,
) -> Result<()> {
    let last = pieces.len() - 1;
    let of = |(index, piece): (usize, &Piece)| -> Descriptor {
        let flags = piece.flags | if index == last { 0 } else { flag::NEXT };
        let next = u16::try_from(index + 1).expect("a table is small");
        Descriptor { address: piece.address, length: piece.length, flags, next }
    };
    let table: Vec<u8> = pieces.iter().enumerate().flat_map(|it| of(it).bytes()).collect();
    device.put(TABLE, &table);
    let length = u32::try_from(table.len()).context("a table")?;
    let whole = device.data(TABLE, length, flag::INDIRECT);
    let ring = device.ring_mut(queue);
    for head in heads {
        ring.set_chain(head, &[whole]);
        ring.offer(head);
    }
    ring.kick()
}

/// A read of so many bytes at a sector, in at most 1024 pieces that lie upon each other.
fn read_of(device: &RawDevice, sector: u64, bytes: u64) -> Vec<Piece> {
    /// The longest piece: what there is before the table.
    const PIECE: u64 = 2 << 20;
    let (header, status) = device.frame(kind::IN, sector);
    let mut pieces = vec![header];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(PIECE);
        left -= length;
        pieces.push(device.data(0, u32::try_from(length).expect("2 MiB"), flag::WRITE));
    }
    pieces.push(status);
    pieces
}

/// Waits until the device has used so many requests in each queue, or has ended the session, or takes too long.
fn wait_used(device: &RawDevice, count: u16, limit: Duration) -> Result<()> {
    let deadline = Deadline::after(limit);
    poll_until("nothing", limit + PATIENCE, || {
        let is_over = device.rings.iter().all(|ring| ring.used_index() >= count);
        Ok((is_over || deadline.has_passed() || device.has_ended()?).then_some(()))
    })
}

/// How often an attack was tried.
#[derive(Clone, Debug, Default)]
struct Count {
    tries: u32,
    done: u32,
    /// Why it was not done the last time.
    error: Option<String>,
}

#[derive(Debug)]
struct Drawn {
    rng: Rng,
    order: Vec<usize>,
    busy: Vec<Victim>,
    counts: Vec<Count>,
}

/// All attacks, in an order that the seed chooses.
#[derive(Debug)]
pub(super) struct Deck {
    attacks: Vec<Attack>,
    drawn: Mutex<Drawn>,
}

impl Deck {
    /// Those with this in their name that can be tried here.
    pub(super) fn new(disks: &Disks, name: &str, seed: u64) -> Self {
        let can = |it: &Attack| it.victim != Victim::Hanging || disks.slow.is_some();
        let wanted = |it: &Attack| it.name.contains(name) && can(it);
        let attacks: Vec<Attack> = all().into_iter().filter(wanted).collect();
        let counts = vec![Count::default(); attacks.len()];
        let drawn = Drawn { rng: Rng::new(seed), order: Vec::new(), busy: Vec::new(), counts };
        Self { attacks, drawn: Mutex::new(drawn) }
    }

    fn lock(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether each attack has come at least once.
    pub(super) fn is_through(&self) -> bool {
        self.lock().counts.iter().all(|it| it.tries > 0)
    }

    /// The next attack on a disk that nobody attacks, and a seed for it.
    fn draw(&self) -> Option<(usize, u64)> {
        let mut drawn = self.lock();
        if drawn.order.is_empty() {
            drawn.order = (0..self.attacks.len()).collect();
            for last in (1..drawn.order.len()).rev() {
                let other = drawn.rng.index(last + 1);
                drawn.order.swap(last, other);
            }
        }
        let is_free = |index: &usize| !drawn.busy.contains(&self.attacks[*index].victim);
        let place = drawn.order.iter().position(is_free)?;
        let index = drawn.order.remove(place);
        drawn.busy.push(self.attacks[index].victim);
        drawn.counts[index].tries += 1;
        Some((index, drawn.rng.next_u64()))
    }

    fn put_back(&self, index: usize, result: Result<()>) {
        let mut drawn = self.lock();
        let victim = self.attacks[index].victim;
        drawn.busy.retain(|it| *it != victim);
        let count = &mut drawn.counts[index];
        match result {
            Ok(()) => count.done += 1,
            Err(error) => count.error = Some(format!("{error:#}")),
        }
    }

    /// Attacks as long as there are attackers.
    pub(super) fn attack(&self, arena: &Arena<'_>) {
        while arena.service.goes_on(Phase::Attack) {
            match self.draw() {
                Some((index, seed)) => {
                    let attack = self.attacks[index];
                    let result = (attack.run)(arena, &mut Rng::new(seed));
                    if result.is_err() {
                        // Perhaps nobody serves just now.
                        arena.service.rest(Duration::from_millis(100), Phase::Attack);
                    }
                    self.put_back(index, result);
                }
                None => arena.service.rest(Duration::from_millis(10), Phase::Attack),
            }
        }
    }

    /// How many attacks there were. An attack that was never carried out shows nothing.
    pub(super) fn judge(&self) -> Result<u32> {
        let drawn = self.lock();
        for (attack, count) in self.attacks.iter().zip(&drawn.counts) {
            let Count { tries, done, error } = count;
            let name = attack.name;
            let may_be_chance = *tries < TRIES_MIN;
            ensure!(*done > 0 || may_be_chance, "{name} failed all {tries} times: {error:?}");
        }
        Ok(drawn.counts.iter().map(|it| it.done).sum())
    }

    /// A line for each attack.
    pub(super) fn lines(&self) -> Vec<String> {
        let drawn = self.lock();
        let line = |(attack, count): (&Attack, &Count)| {
            let Count { tries, done, error } = count;
            let error = error.as_ref().map(|it| format!(", once: {it}")).unwrap_or_default();
            format!("{}: {done} of {tries}{error}", attack.name)
        };
        self.attacks.iter().zip(&drawn.counts).map(line).collect()
    }
}
