//! Hostile rings of both layouts: any memory contents, any order of operations.
//!
//! Invariants (checked): what is popped lies in guest memory and has a bound; a head is popped only
//! while it is not in flight; a ring can always be resumed where it says it stands; published
//! is what was staged; no wish for kicks hides a chain.
//! Limits: `OPERATIONS_MAX` operations; a file of the guest is 16 KiB beside the large region.

mod offer;

use std::sync::Arc;

use virtio::{
    Chain, ChainProblem, Head, Interrupt, Ring, RingAddresses, RingBase, RingError, RingLayout,
    RingSetup, SEGMENTS_MAX,
};

use crate::guest::{GUEST, Guest, REGION, USER};
use crate::input::Input;
use offer::Driver;

/// More than this shows nothing new and takes its time.
const OPERATIONS_MAX: usize = 512;

/// A split ring.
pub fn split_ring(data: &[u8]) {
    run(RingLayout::Split, data);
}

/// A packed ring.
pub fn packed_ring(data: &[u8]) {
    run(RingLayout::Packed, data);
}

fn run(layout: RingLayout, data: &[u8]) {
    Guest::with(|guest| {
        let mut input = Input::new(data);
        let setup = setup(layout, &mut input);
        let Some(mut run) = Run::start(guest, setup) else {
            return;
        };
        for _ in 0..OPERATIONS_MAX {
            if input.is_empty() || !run.step(&mut input) {
                return;
            }
        }
    });
}

fn setup(layout: RingLayout, input: &mut Input<'_>) -> RingSetup {
    let shape = input.u8();
    let size = match (shape & 7, layout) {
        (7, _) => input.u16(),
        (exponent, RingLayout::Split) => 1 << exponent,
        (_, RingLayout::Packed) => u16::from(input.u8() % 64) + 1,
    };
    let mut addresses =
        RingAddresses { descriptors: USER, available: USER + 0x800, used: USER + 0xc00 };
    if shape & 0x20 != 0 {
        let mut anywhere = || USER + u64::from(input.u16());
        addresses =
            RingAddresses { descriptors: anywhere(), available: anywhere(), used: anywhere() };
    }
    let base = if shape & 0x40 != 0 { RingBase(input.u32()) } else { RingBase::start(layout) };
    let (event_idx, indirect) = (shape & 8 != 0, shape & 0x10 != 0);
    RingSetup { layout, size, addresses, base, event_idx, indirect }
}

/// A ring being served by a device that keeps books.
struct Run<'a> {
    guest: &'a Guest,
    setup: RingSetup,
    ring: Ring,
    driver: Driver,
    chain: Chain,
    in_flight: Vec<Head>,
    /// Completions staged since the last publication.
    staged: u16,
    /// The used index of a split ring that the driver must see.
    published: Option<u16>,
}

impl<'a> Run<'a> {
    /// Checks on the way that what the session asks for and what the ring takes are the same.
    fn start(guest: &'a Guest, setup: RingSetup) -> Option<Self> {
        let possible = setup.check(&guest.memory).and(setup.check_base());
        let ring = Ring::new(Arc::clone(&guest.memory), setup);
        assert_eq!(possible.is_ok(), ring.is_ok(), "{setup:?}: {possible:?}");
        let ring = ring.ok()?;
        assert_eq!(ring.size(), setup.size);
        let mut run = Self {
            guest,
            setup,
            ring,
            driver: Driver::new(setup),
            chain: Chain::default(),
            in_flight: Vec::new(),
            staged: 0,
            published: None,
        };
        run.published = run.used_index();
        Some(run)
    }

    /// One operation of device or driver; `false` if the ring cannot be served any more.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.u8() % 12 {
            0 | 1 => return self.pop(input.u8()),
            2 => self.push_used(input.u8(), input.u16().into()),
            3 => self.publish(),
            4 => self.ring.suppress_kicks(),
            5 => {
                let again = self.ring.request_kicks();
                assert_eq!(again, self.ring.has_available(), "kicks hide no chain");
            }
            6 => self.driver.describe(self.guest, input),
            7 | 8 => self.driver.offer(self.guest, input),
            9 => {
                let offset = u64::from(input.u16()) % (2 * REGION);
                let count = input.u8() % 64;
                self.guest.write(GUEST + offset, input.bytes(count.into()));
            }
            10 => self.driver.wish(self.guest, input),
            _ => return self.resume(),
        }
        true
    }

    fn pop(&mut self, touched: u8) -> bool {
        let available = self.ring.has_available();
        let before = self.ring.base();
        let head = match self.ring.pop(&mut self.chain) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(self.ring.base(), before, "a refused chain was not served");
                if let RingError::Chain { problem: ChainProblem::TooLong { free }, .. } = error {
                    assert_eq!(free, self.free(), "no chain is refused that has its place");
                }
                return false;
            }
            Ok(None) => {
                assert!(self.chain_is_empty(), "no chain, no memory");
                return true;
            }
            Ok(Some(head)) => head,
        };
        assert!(available, "what is popped was available");
        assert!(head.0 < self.ring.size(), "{head:?}");
        assert!(!self.in_flight.contains(&head), "{head:?} is in flight already");
        self.in_flight.push(head);
        assert!(self.in_flight.len() <= self.ring.size().into(), "more chains than descriptors");
        assert!(!self.chain_is_empty(), "a chain has memory");
        self.touch(touched);
        self.check_base();
        true
    }

    /// How many descriptors of a packed ring the driver may have made available.
    fn free(&self) -> u16 {
        let [a0, a1, u0, u1] = self.ring.base().0.to_le_bytes();
        let [available, used] = [[a0, a1], [u0, u1]].map(u16::from_le_bytes);
        let round = if (available ^ used) & 0x8000 == 0 { 0 } else { self.ring.size() };
        self.ring.size() - ((available & 0x7fff) + round - (used & 0x7fff))
    }

    fn chain_is_empty(&self) -> bool {
        self.chain.readable.count() + self.chain.writable.count() == 0
    }

    /// Checks the memory of the popped chain and uses some of it. It may be the ring's own.
    fn touch(&mut self, count: u8) {
        let Chain { readable, writable } = &mut self.chain;
        self.guest.check(readable);
        self.guest.check(writable);
        let segments = readable.segments().len() + writable.segments().len();
        assert!(segments <= SEGMENTS_MAX, "{segments} segments");
        let mut scratch = [0; 512];
        let copied = readable.copy_to(0, &mut scratch);
        assert_eq!(copied, readable.count().min(scratch.len()));
        if count >= 0x80 && self.guest.is_small(writable) {
            writable.copy_from(0, &scratch[..usize::from(count - 0x80)]);
        }
    }

    fn push_used(&mut self, choice: u8, written: u32) {
        if !self.in_flight.is_empty() {
            let head = self.in_flight.swap_remove(usize::from(choice) % self.in_flight.len());
            self.ring.push_used(head, written);
            self.staged += 1;
        }
    }

    fn publish(&mut self) {
        let first = self.ring.base().0 >> 16;
        let interrupt = self.ring.publish();
        if self.staged == 0 {
            assert_eq!(interrupt, Interrupt::Suppressed, "there is nothing new");
            return;
        }
        match self.setup.layout {
            RingLayout::Split => {
                if let Some(published) = &mut self.published {
                    *published = published.wrapping_add(self.staged);
                }
                assert_eq!(self.used_index(), self.published, "the driver sees what was staged");
            }
            RingLayout::Packed => self.check_used_flags(first),
        }
        self.staged = 0;
        self.check_base();
    }

    /// Of the first used descriptor of a batch, at this position.
    fn check_used_flags(&self, position: u32) {
        let (slot, wrap) = (position & 0x7fff, position & 0x8000 != 0);
        let at = self.setup.addresses.descriptors + 16 * u64::from(slot) + 14;
        if let Some(flags) = self.guest.u16_at_user(at) {
            let bits = (flags & 1 << 7 != 0, flags & 1 << 15 != 0);
            assert_eq!(bits, (wrap, wrap), "the driver sees the first used descriptor");
        }
    }

    fn used_index(&self) -> Option<u16> {
        match self.setup.layout {
            RingLayout::Split => self.guest.u16_at_user(self.setup.addresses.used + 2),
            RingLayout::Packed => None,
        }
    }

    fn check_base(&self) {
        let setup = RingSetup { base: self.ring.base(), ..self.setup };
        assert_eq!(setup.check_base(), Ok(()), "a ring can be resumed where it stands");
    }

    /// Another device takes over; what was in flight is forgotten.
    fn resume(&mut self) -> bool {
        self.check_base();
        let setup = RingSetup { base: self.ring.base(), ..self.setup };
        let Some(run) = Self::start(self.guest, setup) else {
            unreachable!("the ring was served before");
        };
        let driver = std::mem::replace(self, run).driver;
        self.driver = driver;
        true
    }
}
