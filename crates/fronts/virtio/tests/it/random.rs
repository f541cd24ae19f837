//! Random chains against a model: what the driver offered is what the device gets, and what the
//! device returns is what the driver sees.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use virtio::{BlkRules, Chain, Head, RingBase, decode};

use crate::driver::{Descriptor, Driver, INDIRECT, NEXT, WRITE};
use crate::guest::{BUFFERS, GUEST, REGION, bytes};

const SIZE: u16 = 16;

/// One chain: the lengths of its buffers, and whether they are named by an indirect table.
#[derive(Debug, Clone)]
struct Plan {
    readable: Vec<u32>,
    writable: Vec<u32>,
    indirect: bool,
    /// Whether the buffers lie around the border of the two regions.
    border: bool,
}

/// A chain as the driver made it.
struct Offered {
    head: u16,
    content: Vec<u8>,
    answer: Vec<(u64, u32)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let lengths = || vec(prop_oneof![1..40_u32, 1..3000_u32], 0..5);
    (lengths(), lengths(), any::<bool>(), any::<bool>())
        .prop_filter("a chain has a descriptor", |(r, w, ..)| r.len() + w.len() > 0)
        .prop_map(|(readable, writable, indirect, border)| Plan {
            readable,
            writable,
            indirect,
            border,
        })
}

/// Puts the buffers of one plan into memory, returns their descriptors and what is expected.
fn place(driver: &Driver, plan: &Plan, seed: u8) -> (Vec<Descriptor>, Offered) {
    let mut at = if plan.border { GUEST + REGION - 2000 } else { BUFFERS + u64::from(seed) };
    let mut offered = Offered { head: 0, content: Vec::new(), answer: Vec::new() };
    let mut descriptors = Vec::new();
    let readable = plan.readable.iter().map(|&bytes| (bytes, 0));
    let writable = plan.writable.iter().map(|&bytes| (bytes, WRITE));
    for (bytes, flags) in readable.chain(writable) {
        descriptors.push(Descriptor { address: at, bytes, flags, next: 0 });
        if flags == WRITE {
            offered.answer.push((at, bytes));
        } else {
            let content: Vec<u8> =
                (0..251).cycle().map(|n: u8| n ^ seed).take(bytes as usize).collect();
            driver.write(at, &content);
            offered.content.extend(content);
        }
        at += u64::from(bytes) + 7;
    }
    (descriptors, offered)
}

/// Links descriptors in the order of `places`.
fn link(descriptors: &mut [Descriptor], places: &[u16]) {
    for (descriptor, next) in descriptors.iter_mut().zip(&places[1..]) {
        descriptor.flags |= NEXT;
        descriptor.next = *next;
    }
}

/// Makes one chain available, in descriptors taken from `free`, which are in random order.
fn offer(driver: &mut Driver, plan: &Plan, free: &mut VecDeque<u16>, seed: u8) -> Offered {
    let (mut descriptors, mut offered) = place(driver, plan, seed);
    if plan.indirect {
        let places: Vec<u16> = (0..).take(descriptors.len()).collect();
        link(&mut descriptors, &places);
        let address = GUEST + 0xc_0000 + 256 * u64::from(seed);
        driver.set_table(address, &descriptors);
        let bytes = u32::try_from(16 * descriptors.len()).expect("tables are small");
        descriptors = vec![Descriptor { address, bytes, flags: INDIRECT, next: 0 }];
    }
    let places: Vec<u16> = free.drain(..descriptors.len()).collect();
    link(&mut descriptors, &places);
    for (place, descriptor) in places.iter().zip(&descriptors) {
        driver.set_descriptor(*place, *descriptor);
    }
    offered.head = places[0];
    driver.make_available(offered.head);
    free.extend(places);
    offered
}

proptest! {
    #[test]
    fn chains_come_out_as_they_went_in(
        start: u16,
        plans in vec(plan(), 1..12),
        order in proptest::sample::subsequence((0..SIZE).collect::<Vec<_>>(), usize::from(SIZE))
            .prop_shuffle(),
    ) {
        let mut driver = Driver::new(SIZE, start);
        let mut ring = driver.ring();
        let mut free = VecDeque::from(order);
        let mut chain = Chain::default();
        for (seed, plan) in (0..).zip(&plans) {
            let offered = offer(&mut driver, plan, &mut free, seed);
            prop_assert_eq!(ring.pop(&mut chain).unwrap(), Some(Head(offered.head)));
            prop_assert_eq!(bytes(&chain.readable), offered.content);
            let count = chain.writable.count();
            let answer: Vec<u8> = (0..249).cycle().take(count).collect();
            prop_assert_eq!(chain.writable.copy_from(0, &answer), count);
            let mut written = Vec::new();
            for (address, bytes) in offered.answer {
                written.extend(driver.read(address, bytes as usize));
            }
            prop_assert_eq!(written, answer);
            let written = u32::try_from(count).unwrap();
            ring.push_used(Head(offered.head), written);
            let _interrupt = ring.publish();
            prop_assert_eq!(driver.take_used(), vec![(u32::from(offered.head), written)]);
        }
        prop_assert!(ring.pop(&mut chain).unwrap().is_none());
        prop_assert_eq!(ring.base(), RingBase(driver.available.into()));
    }

    /// Whatever stands in the descriptors and the request: an answer or an error, and in bounds.
    #[test]
    fn no_garbage_does_harm(
        table in vec((any::<u64>(), prop_oneof![0..64_u32, any::<u32>()], 0..8_u16, 0..9_u16), 8),
        near in any::<bool>(),
        header in vec(any::<u8>(), 64),
        head in 0..9_u16,
    ) {
        let mut driver = Driver::new(8, 0);
        driver.write(BUFFERS, &header);
        for (index, &(address, bytes, flags, next)) in (0..).zip(&table) {
            let address = if near { GUEST + address % (2 * REGION + 64) } else { address };
            driver.set_descriptor(index, Descriptor { address, bytes, flags, next });
        }
        let mut ring = driver.ring();
        driver.make_available(head);
        let mut chain = Chain::default();
        let rules = BlkRules {
            size: block::DiskSize(block::ByteCount(1 << 30)),
            access: block::Access::ReadWrite,
            durability: block::Durability::Cached,
            discard: true,
            write_zeroes: true,
        };
        if let Ok(Some(popped)) = ring.pop(&mut chain) {
            prop_assert_eq!(popped, Head(head));
            if let Ok(request) = decode(&mut chain, &rules) {
                prop_assert_eq!(request.status.count(), 1);
            }
        }
    }
}
