//! Random chains against a model: what the driver offered is what the device gets, and what the
//! device returns, in any order and in any batches, is what the driver sees.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, proptest};
use virtio::{Chain, Head, Interrupt, Ring};

use super::driver::{AT_DESCRIPTOR, Descriptor, Driver, INDIRECT, Place, WRITE};
use crate::guest::{BUFFERS, GUEST, REGION, bytes};

/// What driver and device do next.
#[derive(Debug, Clone)]
enum Step {
    /// Offers a chain of buffers of these lengths, if there is room.
    Offer { readable: Vec<u32>, writable: Vec<u32>, indirect: bool, border: bool },
    /// Pops all there is.
    Pop,
    /// Completes one of the chains in flight.
    Complete(proptest::sample::Index),
    /// Completes all chains in flight, the last first.
    CompleteAll,
    /// Publishes; the driver has asked for an interrupt so many descriptors further on.
    Publish(u16),
}

/// A chain as the driver made it.
struct Offered {
    id: u16,
    content: Vec<u8>,
    writable: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let lengths = || vec(prop_oneof![1..40_u32, 1..3000_u32], 0..4);
    prop_oneof![
        4 => (lengths(), lengths(), any::<bool>(), any::<bool>())
            .prop_filter("a chain has a descriptor", |(r, w, ..)| r.len() + w.len() > 0)
            .prop_map(|(readable, writable, indirect, border)| {
                Step::Offer { readable, writable, indirect, border }
            }),
        2 => Just(Step::Pop),
        3 => any::<proptest::sample::Index>().prop_map(Step::Complete),
        1 => Just(Step::CompleteAll),
        2 => any::<u16>().prop_map(Step::Publish),
    ]
}

/// A driver and a device, and what each has to expect of the other.
struct Model {
    driver: Driver,
    ring: Ring,
    chain: Chain,
    free_ids: Vec<u16>,
    waiting: Vec<Offered>,
    popped: Vec<(Head, u32)>,
    staged: Vec<(u16, u32)>,
    seed: u8,
    published_once: bool,
}

impl Model {
    fn new(size: u16, slot: u16, wrap: bool) -> Self {
        let driver = Driver::at(size, Place { slot: slot % size, wrap });
        Self {
            ring: driver.event_ring(),
            driver,
            chain: Chain::default(),
            free_ids: (0..size).collect(),
            waiting: Vec::new(),
            popped: Vec::new(),
            staged: Vec::new(),
            seed: 0,
            published_once: false,
        }
    }

    fn offer(&mut self, readable: &[u32], writable: &[u32], indirect: bool, border: bool) {
        let count = if indirect { 1 } else { readable.len() + writable.len() };
        if count > self.driver.room().into() {
            return;
        }
        // The ids of chains in flight are in no order.
        let id = self.free_ids.swap_remove(usize::from(self.seed) % self.free_ids.len());
        self.seed = self.seed.wrapping_add(1);
        let mut at = if border { GUEST + REGION - 2000 } else { BUFFERS + u64::from(self.seed) };
        let mut buffers = Vec::new();
        let mut content = Vec::new();
        let readable = readable.iter().map(|&bytes| (bytes, 0));
        let all = readable.chain(writable.iter().map(|&bytes| (bytes, WRITE)));
        for (bytes, flags) in all {
            if flags == 0 {
                let seed = self.seed;
                let part: Vec<u8> =
                    (0..251).cycle().map(|n: u8| n ^ seed).take(bytes as usize).collect();
                self.driver.write(at, &part);
                content.extend(part);
            }
            buffers.push((at, bytes, flags));
            at += u64::from(bytes) + 7;
        }
        if indirect {
            let table: Vec<Descriptor> = buffers
                .iter()
                .map(|&(address, bytes, flags)| Descriptor { address, bytes, id: 77, flags })
                .collect();
            let address = GUEST + 0xc_0000 + 256 * u64::from(self.seed);
            self.driver.set_table(address, &table);
            let bytes = u32::try_from(16 * table.len()).expect("tables are small");
            buffers = vec![(address, bytes, INDIRECT)];
        }
        self.driver.offer(id, &buffers);
        self.waiting.push(Offered { id, content, writable: writable.iter().sum() });
        // Buffers of several chains may lie at one place; what was written last counts.
        if self.waiting.len() > 1 {
            for earlier in self.waiting.iter_mut().rev().skip(1) {
                earlier.content.clear();
            }
        }
    }

    fn pop(&mut self) -> Result<(), TestCaseError> {
        for offered in std::mem::take(&mut self.waiting) {
            prop_assert_eq!(self.ring.pop(&mut self.chain), Ok(Some(Head(offered.id))));
            if !offered.content.is_empty() {
                prop_assert_eq!(bytes(&self.chain.readable), offered.content);
            }
            prop_assert_eq!(self.chain.writable.count(), offered.writable as usize);
            self.popped.push((Head(offered.id), offered.writable));
        }
        prop_assert_eq!(self.ring.pop(&mut self.chain), Ok(None));
        Ok(())
    }

    fn complete(&mut self, place: usize) {
        let (head, written) = self.popped.remove(place);
        self.ring.push_used(head, written);
        self.staged.push((head.0, written));
    }

    fn publish(&mut self, ahead: u16) -> Result<(), TestCaseError> {
        prop_assert!(self.driver.take_used().is_empty(), "nothing is seen before");
        let size = self.driver.size;
        let ahead = ahead % (2 * size);
        let before = (self.driver.used, self.driver.room());
        self.driver.set_events(AT_DESCRIPTOR, before.0.forward(ahead, size));
        let interrupt = self.ring.publish();
        let staged = std::mem::take(&mut self.staged);
        prop_assert_eq!(&self.driver.take_used(), &staged);
        let passed = self.driver.room() - before.1;
        let first = !self.published_once;
        self.published_once |= !staged.is_empty();
        let wanted = !staged.is_empty() && (first || ahead < passed);
        let expected = if wanted { Interrupt::Wanted } else { Interrupt::Suppressed };
        prop_assert_eq!(interrupt, expected, "{} of {} passed", passed, ahead);
        self.free_ids.extend(staged.iter().map(|(id, _)| id));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Offer { readable, writable, indirect, border } => {
                self.offer(readable, writable, *indirect, *border);
            }
            Step::Pop => self.pop()?,
            Step::Complete(index) if !self.popped.is_empty() => {
                self.complete(index.index(self.popped.len()));
            }
            Step::Complete(_) => {}
            Step::CompleteAll => {
                while let Some(last) = self.popped.len().checked_sub(1) {
                    self.complete(last);
                }
            }
            Step::Publish(ahead) => self.publish(*ahead)?,
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn chains_come_out_as_they_went_in_and_come_back_as_they_were_returned(
        size in 1..24_u16,
        slot: u16,
        wrap: bool,
        steps in vec(step(), 1..300),
    ) {
        let mut model = Model::new(size, slot, wrap);
        for step in &steps {
            model.step(step)?;
        }
        model.pop()?;
        model.step(&Step::CompleteAll)?;
        model.publish(0)?;
        prop_assert_eq!(model.driver.room(), size);
        prop_assert_eq!(model.ring.base(), model.driver.base());
    }

    /// Whatever stands in the ring and whatever base is asked for: a chain or an error, in bounds,
    /// and every chain can be returned.
    #[test]
    fn no_garbage_does_harm(
        size in 1..9_u16,
        base: u32,
        table in vec((any::<u64>(), prop_oneof![0..64_u32, any::<u32>()], 0..9_u16, any::<u16>()), 8),
        near in any::<bool>(),
        event_idx in any::<bool>(),
    ) {
        let driver = Driver::new(size);
        for (slot, &(address, bytes, id, flags)) in (0..size).zip(&table) {
            let address = if near { GUEST + address % (2 * REGION + 64) } else { address };
            driver.set_descriptor(slot, Descriptor { address, bytes, id, flags });
        }
        let mask = (u32::from(size.next_power_of_two() - 1) * 0x1_0001) | 0x8000_8000;
        let setup = virtio::RingSetup {
            base: virtio::RingBase(base & mask),
            event_idx,
            ..driver.setup()
        };
        let Ok(mut ring) = Ring::new(std::sync::Arc::clone(&driver.memory), setup) else {
            return Ok(());
        };
        let mut chain = Chain::default();
        for _ in 0..40 {
            ring.suppress_kicks();
            let Ok(Some(head)) = ring.pop(&mut chain) else { break };
            prop_assert!(head.0 < size);
            ring.push_used(head, 1);
            let _interrupt = ring.publish();
            let _again = ring.request_kicks();
        }
    }
}
