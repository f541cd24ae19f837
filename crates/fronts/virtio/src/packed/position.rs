//! Positions in a packed ring: a slot and a wrap counter (virtio 1.2, 2.8.1).
//!
//! Invariants: the slot of a position of ours is less than the ring size. One that the driver wrote
//! may have any slot and is only compared, never an address.

use crate::ring::{RingError, RingSetup};

/// VIRTQ_DESC_F_WRITE in a used descriptor: something was written.
const WRITE: u16 = 2;
/// VIRTQ_DESC_F_AVAIL.
const AVAILABLE: u16 = 1 << 7;
/// VIRTQ_DESC_F_USED.
const USED: u16 = 1 << 15;
/// The wrap counter beside a slot of 15 bits.
const WRAP: u16 = 1 << 15;

/// A position in a packed ring: a slot and its wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) slot: u16,
    /// Changes each time the ring is gone round.
    pub(crate) wrap: bool,
}

impl Position {
    pub(super) fn from_bits(bits: u16) -> Self {
        Self { slot: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    pub(super) fn to_bits(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    /// The position so many descriptors on, at most once round.
    pub(super) fn after(self, descriptors: u16, size: u16) -> Self {
        // At most 32767 and 32768.
        let slot = self.slot + descriptors;
        match slot.checked_sub(size) {
            None => Self { slot, wrap: self.wrap },
            Some(slot) => Self { slot, wrap: !self.wrap },
        }
    }

    /// Whether these flags of its slot say that the driver made it available in this round.
    pub(super) fn is_available(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.wrap && (flags & USED != 0) != self.wrap
    }

    /// The flags by which a descriptor of this round is available.
    pub(super) fn available_flags(self) -> u16 {
        if self.wrap { AVAILABLE } else { USED }
    }

    /// The flags of a used descriptor here.
    pub(super) fn used_flags(self, written: u32) -> u16 {
        let round = if self.wrap { AVAILABLE | USED } else { 0 };
        round | if written == 0 { 0 } else { WRITE }
    }

    /// Whether `event` is among the last `count` positions before this one (virtio 1.2, 2.8.10).
    pub(super) fn has_passed(self, event: Self, count: u16, size: u16) -> bool {
        let round = if event.wrap == self.wrap { 0 } else { i32::from(size) };
        let back = i32::from(self.slot) - (i32::from(event.slot) - round);
        (1..=i32::from(count)).contains(&back)
    }
}

/// How far a packed ring has been served: the positions of the next available chain and the next used descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingProgress {
    /// Of the next chain.
    pub(super) available: Position,
    /// Of the next used descriptor.
    pub(super) used: Position,
    /// The descriptors between them.
    pub(super) held: u16,
}

impl RingProgress {
    /// Takes a front end at its word if both positions are in the ring and no further apart than
    /// it is long.
    pub(crate) fn from_base(setup: &RingSetup) -> Result<Self, RingError> {
        let RingSetup { base, size, layout, .. } = *setup;
        let [a0, a1, u0, u1] = base.0.to_le_bytes();
        let available = u16::from_le_bytes([a0, a1]);
        // DPDK's and SPDK's front ends leave the high half 0. Nothing can be in flight for us at
        // the start of a ring, so the used position is the same then.
        let used = match u16::from_le_bytes([u0, u1]) {
            0 => available,
            used => used,
        };
        let [available, used] = [available, used].map(Position::from_bits);
        let ahead = if available.wrap == used.wrap { 0 } else { u32::from(size) };
        // Wide enough for a size that nobody has checked yet.
        let held = (u32::from(available.slot) + ahead).checked_sub(used.slot.into());
        match held.and_then(|it| u16::try_from(it).ok()) {
            Some(held) if available.slot < size && used.slot < size && held <= size => {
                Ok(Self { available, used, held })
            }
            Some(_) | None => Err(RingError::Base { base, layout, size }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RingAddresses, RingBase, RingLayout};

    #[track_caller]
    fn check_event(new: (u16, bool), event: (u16, bool), count: u16, expected: bool) {
        let [new, event] = [new, event].map(|(slot, wrap)| Position { slot, wrap });
        let found = new.has_passed(event, count, 100);
        assert_eq!(found, expected, "{event:?}, {count} descriptors up to {new:?}");
    }

    #[test]
    fn an_event_is_passed_when_the_position_steps_over_it() {
        check_event((6, true), (5, true), 1, true);
        check_event((6, true), (6, true), 1, false);
        check_event((6, true), (4, true), 1, false);
        check_event((9, false), (7, false), 4, true);
        check_event((9, false), (9, false), 4, false);
        check_event((9, false), (9, true), 100, true);
        check_event((9, false), (9, false), 100, false);
        check_event((9, true), (10, false), 100, true);
        check_event((9, true), (8, false), 100, false);
    }

    #[test]
    fn an_event_is_passed_across_the_end_of_the_ring() {
        check_event((0, false), (99, true), 1, true);
        check_event((0, false), (99, false), 1, false);
        check_event((0, false), (0, false), 1, false);
        check_event((2, true), (98, false), 4, true);
        check_event((2, true), (97, false), 4, false);
        check_event((2, true), (1, true), 4, true);
        check_event((2, true), (1, false), 4, false);
    }

    #[test]
    fn no_event_of_the_driver_overflows() {
        check_event((0, true), (0x7fff, true), 100, false);
        check_event((99, true), (0x7fff, false), 100, false);
    }

    #[track_caller]
    fn check_base(base: u32, size: u16, expected: Option<(u32, u16)>) {
        let setup = RingSetup {
            layout: RingLayout::Packed,
            size,
            addresses: RingAddresses { descriptors: 0, available: 0, used: 0 },
            base: RingBase(base),
            event_idx: false,
            indirect: false,
        };
        let found = RingProgress::from_base(&setup).ok().map(|progress| {
            let [available, used] = [progress.available, progress.used].map(Position::to_bits);
            (u32::from(available) | u32::from(used) << 16, progress.held)
        });
        assert_eq!(found, expected, "base {base:#x}");
    }

    #[test]
    fn a_base_names_two_positions_at_most_a_ring_apart() {
        check_base(0x8000_8000, 8, Some((0x8000_8000, 0)));
        check_base(0x0003_0007, 8, Some((0x0003_0007, 4)));
        check_base(0x8007_0001, 8, Some((0x8007_0001, 2)));
        check_base(0x8003_0003, 8, Some((0x8003_0003, 8)));
        check_base(0x8003_0004, 8, None);
        check_base(0x8004_8003, 8, None);
        check_base(0x8008_8008, 8, None);
        check_base(0xffff_ffff, 32768, Some((0xffff_ffff, 0)));
        check_base(0xffff_7fff, 32768, Some((0xffff_7fff, 32768)));
    }

    #[test]
    fn a_base_is_judged_whatever_the_size() {
        check_base(0x8000_0000, 0, None);
        check_base(0xffff_7fff, u16::MAX, Some((0xffff_7fff, u16::MAX)));
        check_base(0x8000_7fff, u16::MAX, None);
    }

    #[test]
    fn a_base_without_a_used_position_has_nothing_in_flight() {
        check_base(0x8000, 8, Some((0x8000_8000, 0)));
        check_base(0x8005, 8, Some((0x8005_8005, 0)));
        check_base(0, 8, Some((0, 0)));
    }

    #[test]
    fn positions_go_round() {
        let start = Position { slot: 6, wrap: true };
        assert_eq!(start.after(0, 7), start);
        assert_eq!(start.after(1, 7), Position { slot: 0, wrap: false });
        assert_eq!(start.after(7, 7), Position { slot: 6, wrap: false });
        let last = Position { slot: 32767, wrap: false };
        assert_eq!(last.after(32768, 32768), Position { slot: 32767, wrap: true });
    }
}
