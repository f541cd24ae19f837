//! A load that keeps every ring full and checks every answer.
//!
//! Half of the writes go where a write was completed just before, so that an older write that comes late is seen.
//! Requests differ in length, alignment, number of pieces and form of the chain.
//!
//! Invariants: a slot belongs to one request from its offer to its completion. While it is free its buffer is poisoned,
//! so that a device that writes into it is found out.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::front_end::{Guest, Session, Shape};
use super::model::{Model, Sectors};
use super::stamp::{Foreign, Stamp};
use crate::deadline::Deadline;
use crate::image::SECTOR_BYTES;
use crate::rawring::{Piece, flag, kind};
use crate::rng::Rng;

/// The longest request.
const SECTORS_MAX: u64 = 16;
/// A slot's place in the data memory: header, status byte, table, data.
const HEADER: usize = 0;
const STATUS: usize = 16;
const TABLE: usize = 64;
const DATA: usize = 512;
/// How far the data of some requests is shifted, so that the server cannot use it directly.
const SHIFT: usize = 8;
const SLOT_BYTES: usize = 9216;
/// What lies in a status byte before a request, and in a free buffer at the start of each sector.
const UNSET: u8 = 0xee;
const POISON: [u8; 8] = *b"poisoned";
/// How many completed writes are remembered as places to go back to.
const RECENT_MAX: usize = 32;
/// How often to look for a place where no write is in flight.
const PLACE_TRIES: u32 = 8;

/// What a request does.
#[derive(Debug)]
enum Action {
    /// What its sectors must hold at least.
    Read {
        least: Vec<u64>,
    },
    Write {
        sequence: u64,
    },
    Flush,
}

#[derive(Debug)]
struct Request {
    action: Action,
    sectors: Sectors,
    /// Where its data starts in the data memory.
    data: usize,
    /// The session in which it was offered.
    session: u32,
}

/// The load of one guest.
#[derive(Debug)]
pub(super) struct Load {
    /// The guest.
    pub(super) guest: Guest,
    model: Model,
    stamp: Stamp,
    random: Rng,
    slots: u16,
    /// By queue and slot.
    requests: Vec<Vec<Option<Request>>>,
    recent: Vec<Sectors>,
    session: u32,
    verified: u64,
}

impl Load {
    /// Bytes of data memory that it needs.
    pub(super) fn data_bytes(queues: u16, slots: u16) -> usize {
        usize::from(queues) * usize::from(slots) * SLOT_BYTES
    }

    /// A load on a disk whose sectors all hold write 0 of this seed.
    pub(super) fn new(shape: Shape, sectors: u64, seed: u64) -> Result<Self> {
        let guest = Guest::new(shape)?;
        let requests = || (0..shape.slots).map(|_| None).collect();
        let load = Self {
            guest,
            model: Model::new(sectors),
            stamp: Stamp::new(seed),
            random: Rng::new(seed),
            slots: shape.slots,
            requests: (0..shape.queues).map(|_| requests()).collect(),
            recent: Vec::new(),
            session: 0,
            verified: 0,
        };
        for queue in 0..usize::from(shape.queues) {
            for slot in 0..shape.slots {
                load.poison(load.place(queue, slot));
            }
        }
        Ok(load)
    }

    /// Requests that were completed and checked.
    pub(super) fn verified(&self) -> u64 {
        self.verified
    }

    /// A new session begins.
    pub(super) fn next_session(&mut self) {
        self.session += 1;
    }

    /// Whether all requests that were in flight when the session began are completed.
    pub(super) fn has_replayed(&self) -> bool {
        self.requests.iter().flatten().flatten().all(|request| request.session >= self.session)
    }

    /// Requests whose completion the device has not published.
    pub(super) fn in_flight(&self) -> usize {
        let offered = self.requests.iter().flatten().flatten().count();
        let published: usize = self.guest.rings().iter().map(|ring| ring.published()).sum();
        offered.saturating_sub(published)
    }

    /// Offers requests until every ring is full, and kicks where it is wanted.
    pub(super) fn fill(&mut self) -> Result<()> {
        for queue in 0..self.requests.len() {
            for slot in 0..self.slots {
                if self.requests[queue][usize::from(slot)].is_none() && !self.offer(queue, slot)? {
                    break;
                }
            }
            self.kick(queue)?;
        }
        Ok(())
    }

    /// Takes what was completed on the rings that have interrupted, and on no other.
    pub(super) fn answer_calls(&mut self) -> Result<()> {
        for queue in 0..self.requests.len() {
            if self.guest.ring(queue).bells().take_calls()? {
                self.drain(queue)?;
            }
        }
        Ok(())
    }

    /// Waits until everything is completed, offering nothing new.
    pub(super) fn finish(&mut self, limit: Duration) -> Result<Session> {
        let deadline = Deadline::after(limit);
        loop {
            self.answer_calls()?;
            if self.requests.iter().flatten().all(Option::is_none) {
                return Ok(Session::Open);
            }
            if deadline.has_passed() {
                bail!("{} within {limit:?}", self.missing());
            }
            if self.guest.wait(deadline.remaining())? == Session::Ended {
                return Ok(Session::Ended);
            }
        }
    }

    /// The rings must be silent: every completion was taken.
    pub(super) fn check_silence(&mut self) -> Result<()> {
        for queue in 0..self.requests.len() {
            self.drain(queue)?;
            let left = self.guest.ring(queue).published();
            ensure!(left == 0, "queue {queue}: {left} completions of nothing");
        }
        Ok(())
    }

    /// Compares the image with the model.
    pub(super) fn check_image(&self, image: &[u8]) -> Result<()> {
        let all = 0..self.model.length();
        let least = self.model.completed(&all);
        self.check(&all, &least, image).context("the image at the end")
    }

    /// The image that the disk has at first.
    pub(super) fn first_image(&self) -> Vec<u8> {
        let mut image = Vec::new();
        let mut bytes = [0; SECTOR_BYTES];
        for sector in 0..self.model.length() {
            self.stamp.fill(sector, 0, &mut bytes);
            image.extend_from_slice(&bytes);
        }
        image
    }

    /// Says what is missing and whether the device or an interrupt is to blame.
    pub(super) fn missing(&self) -> String {
        let mut parts = Vec::new();
        for (queue, (requests, ring)) in self.requests.iter().zip(self.guest.rings()).enumerate() {
            let open = requests.iter().flatten().count();
            if open > 0 {
                let published = ring.published();
                parts.push(format!(
                    "queue {queue}: {open} requests not completed, {published} of them published without an interrupt"
                ));
            }
        }
        parts.join("; ")
    }

    fn kick(&mut self, queue: usize) -> Result<()> {
        let ring = self.guest.ring(queue);
        if ring.wants_kick() {
            ring.bells().kick()?;
        }
        Ok(())
    }

    /// Takes all completions of a ring, as a guest's interrupt handler does.
    fn drain(&mut self, queue: usize) -> Result<()> {
        self.guest.ring(queue).refuse_calls();
        loop {
            while let Some(slot) =
                self.guest.ring(queue).take_used().with_context(|| format!("queue {queue}"))?
            {
                self.complete(queue, slot)
                    .with_context(|| format!("queue {queue}, slot {slot}"))?;
            }
            let ring = self.guest.ring(queue);
            ring.ask_for_call();
            if ring.published() == 0 {
                return Ok(());
            }
            ring.refuse_calls();
        }
    }

    fn complete(&mut self, queue: usize, slot: u16) -> Result<()> {
        let place = self.place(queue, slot);
        let request = self.requests[queue][usize::from(slot)].take();
        let request = request.context("a completion for a slot without a request")?;
        let mut status = [0];
        self.guest.get(place + STATUS, &mut status);
        let [status] = status;
        ensure!(status == 0, "status {status:#x} for {request:?}");
        match &request.action {
            Action::Flush => {}
            Action::Write { sequence } => {
                self.model.complete_write(&request.sectors, *sequence);
                if self.recent.len() == RECENT_MAX {
                    self.recent.swap_remove(self.random.index(RECENT_MAX));
                }
                self.recent.push(request.sectors.clone());
            }
            Action::Read { least } => {
                let mut data = vec![0; bytes(&request.sectors)];
                self.guest.get(request.data, &mut data);
                self.check(&request.sectors, least, &data).context("a read")?;
            }
        }
        self.poison(place);
        self.verified += 1;
        Ok(())
    }

    fn check(&self, sectors: &Sectors, least: &[u64], data: &[u8]) -> Result<()> {
        for ((sector, bytes), least) in
            sectors.clone().zip(data.chunks_exact(SECTOR_BYTES)).zip(least)
        {
            match self.stamp.read(sector, bytes) {
                Err(Foreign::Torn { sequence, .. })
                    if self.model.was_written_since(sector, *least)
                        && self.model.judge(sector, *least, sequence).is_ok() => {}
                Err(foreign) => bail!("sector {sector} holds {foreign}"),
                Ok(found) => {
                    if let Err(wrong) = self.model.judge(sector, *least, found) {
                        bail!("{wrong}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Offers one request in a free slot; false if the ring has no room for it now.
    fn offer(&mut self, queue: usize, slot: u16) -> Result<bool> {
        let place = self.place(queue, slot);
        self.check_poison(place).with_context(|| format!("queue {queue}, slot {slot}"))?;
        let shift = if self.random.one_in(16) { SHIFT } else { 0 };
        let data = place + DATA + shift;
        let request = self.invent(data);
        let (code, direction) = match &request.action {
            Action::Flush => (kind::FLUSH, 0),
            Action::Write { sequence } => {
                self.stamp_data(&request, *sequence);
                (kind::OUT, 0)
            }
            Action::Read { .. } => (kind::IN, flag::WRITE),
        };
        let mut header = [0; 16];
        header[..4].copy_from_slice(&code.to_le_bytes());
        header[8..].copy_from_slice(&request.sectors.start.to_le_bytes());
        self.guest.put(place + HEADER, &header);
        self.guest.put(place + STATUS, &[UNSET]);
        let mut pieces = vec![Guest::piece(place + HEADER, header.len(), 0)];
        pieces.extend(self.data_pieces(&request, direction));
        pieces.push(Guest::piece(place + STATUS, 1, flag::WRITE));
        let table = self.random.one_in(2).then(|| self.guest.table(place + TABLE));
        if !self.guest.ring(queue).offer(slot, &pieces, table)? {
            self.withdraw(&request);
            self.poison(place);
            return Ok(false);
        }
        self.requests[queue][usize::from(slot)] = Some(request);
        Ok(true)
    }

    /// A request that was never offered has never been.
    fn withdraw(&mut self, request: &Request) {
        if let Action::Write { .. } = request.action {
            self.model.withdraw_write(&request.sectors);
        }
    }

    fn invent(&mut self, data: usize) -> Request {
        let session = self.session;
        if self.random.one_in(64) {
            return Request { action: Action::Flush, sectors: 0..0, data, session };
        }
        let is_write = !self.random.one_in(3);
        for _ in 0..PLACE_TRIES {
            let sectors = self.somewhere();
            if is_write && !self.model.is_quiet(&sectors) {
                continue;
            }
            let action = if is_write {
                Action::Write { sequence: self.model.start_write(&sectors) }
            } else {
                Action::Read { least: self.model.completed(&sectors) }
            };
            return Request { action, sectors, data, session };
        }
        let sectors = self.somewhere();
        let action = Action::Read { least: self.model.completed(&sectors) };
        Request { action, sectors, data, session }
    }

    /// A place of a recent write, or any other.
    fn somewhere(&mut self) -> Sectors {
        if !self.recent.is_empty() && self.random.one_in(2) {
            return self.recent[self.random.index(self.recent.len())].clone();
        }
        let length = 1 + self.random.below(SECTORS_MAX);
        let start = self.random.below(self.model.length() - length + 1);
        start..start + length
    }

    fn stamp_data(&self, request: &Request, sequence: u64) {
        let mut data = vec![0; bytes(&request.sectors)];
        for (sector, bytes) in request.sectors.clone().zip(data.chunks_exact_mut(SECTOR_BYTES)) {
            self.stamp.fill(sector, sequence, bytes);
        }
        self.guest.put(request.data, &data);
    }

    /// The data in one piece or two.
    fn data_pieces(&mut self, request: &Request, direction: u16) -> Vec<Piece> {
        let length = bytes(&request.sectors);
        if length == 0 {
            return Vec::new();
        }
        if length < 2 * SECTOR_BYTES || self.random.one_in(2) {
            return vec![Guest::piece(request.data, length, direction)];
        }
        let sectors = length / SECTOR_BYTES;
        let first = (1 + self.random.index(sectors - 1)) * SECTOR_BYTES;
        vec![
            Guest::piece(request.data, first, direction),
            Guest::piece(request.data + first, length - first, direction),
        ]
    }

    fn place(&self, queue: usize, slot: u16) -> usize {
        (queue * usize::from(self.slots) + usize::from(slot)) * SLOT_BYTES
    }

    fn poison(&self, place: usize) {
        for offset in poisoned(place) {
            self.guest.put(offset, &POISON);
        }
    }

    fn check_poison(&self, place: usize) -> Result<()> {
        let mut found = [0; POISON.len()];
        for offset in poisoned(place) {
            self.guest.get(offset, &mut found);
            ensure!(
                found == POISON,
                "the device wrote {found:02x?} into a buffer after it had completed its request"
            );
        }
        Ok(())
    }
}

/// Where a slot's poison lies: at the start of each sector of data, shifted or not.
fn poisoned(place: usize) -> impl Iterator<Item = usize> {
    let sectors = usize::try_from(SECTORS_MAX).expect("16");
    (0..sectors).flat_map(move |sector| {
        let start = place + DATA + sector * SECTOR_BYTES;
        [start, start + SHIFT]
    })
}

fn bytes(sectors: &Sectors) -> usize {
    usize::try_from(sectors.end - sectors.start).expect("a short request") * SECTOR_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::front_end::{Layout, Tracking};
    use super::super::rings::Notification;
    use super::*;

    const SECTORS: u64 = 64;

    fn load(layout: Layout) -> Load {
        let (queues, slots) = (1, 4);
        let shape = Shape {
            queues,
            slots,
            layout,
            notification: Notification::EventIndex,
            data_bytes: Load::data_bytes(queues, slots),
            tracking: Tracking::Nothing,
        };
        Load::new(shape, SECTORS, 3).expect("memory and rings")
    }

    #[track_caller]
    fn check_found(result: Result<()>, expected: &str) {
        let text = format!("{:#}", result.expect_err("it must be found"));
        assert!(text.contains(expected), "{text}");
    }

    /// The device says of each request that it is done, without having done it.
    fn pretend(load: &mut Load, slot: u16) -> Result<()> {
        let place = load.place(0, slot);
        load.guest.put(place + STATUS, &[0]);
        load.guest.ring(0).forge_used(slot);
        load.drain(0)
    }

    #[test]
    fn a_completion_that_comes_twice_is_found() {
        for layout in [Layout::Split, Layout::Packed(16)] {
            let mut load = load(layout);
            load.fill().expect("requests are offered");
            let slot = (0..load.slots).find(|slot| {
                !matches!(
                    load.requests[0][usize::from(*slot)],
                    Some(Request { action: Action::Read { .. }, .. })
                )
            });
            let slot = slot.expect("this seed has a write among the first requests");
            pretend(&mut load, slot).expect("the first time is right");
            check_found(pretend(&mut load, slot), "done twice");
        }
    }

    #[test]
    fn a_write_that_is_not_on_the_disk_is_found() {
        let mut load = load(Layout::Split);
        let image = load.first_image();
        load.check_image(&image).expect("nothing was written yet");
        let sequence = load.model.start_write(&(3..5));
        load.check_image(&image).expect("nothing was completed yet");
        load.model.complete_write(&(3..5), sequence);
        check_found(load.check_image(&image), "sector 3 went back");
    }

    #[test]
    fn a_read_that_brings_nothing_is_found() {
        let mut load = load(Layout::Split);
        load.fill().expect("requests are offered");
        let is_read = |slot: &u16| {
            let request = &load.requests[0][usize::from(*slot)];
            matches!(request, Some(Request { action: Action::Read { .. }, .. }))
        };
        let slot = (0..load.slots).find(is_read).expect("this seed has a read among the first");
        check_found(pretend(&mut load, slot), "none of its own");
    }

    #[test]
    fn a_write_into_a_free_buffer_is_found() {
        let mut load = load(Layout::Split);
        let place = load.place(0, 2);
        load.guest.put(place + DATA + 3 * SECTOR_BYTES, &[0; SECTOR_BYTES]);
        check_found(load.fill(), "after it had completed");
    }
}
