//! Rings as no honest driver writes them: each is refused with a sentence, none does harm.

use std::sync::Arc;

use virtio::{
    Chain, ChainProblem, Ring, RingAddresses, RingBase, RingError, RingSetup, SEGMENTS_MAX,
};

use crate::driver::{Descriptor, Driver, INDIRECT, NEXT, WRITE};
use crate::guest::{BUFFERS, END, GUEST, REGION};

#[track_caller]
fn refused(driver: &mut Driver, head: u16, expected: &str) {
    let mut ring = driver.ring();
    driver.make_available(head);
    let error = ring.pop(&mut Chain::default()).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[track_caller]
fn refused_chain(buffers: &[(u64, u32, u16)], expected: &str) {
    let error = Driver::new(8, 0).chain(buffers).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

fn link(next: u16) -> Descriptor {
    Descriptor { address: BUFFERS, bytes: 16, flags: NEXT, next }
}

#[test]
fn an_available_index_that_jumps_is_refused() {
    let driver = Driver::new(8, 65530);
    let mut ring = driver.ring();
    driver.set_available_index(3);
    let error = ring.pop(&mut Chain::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "available index went from 65530 to 3, more than the ring size 8"
    );
    driver.set_available_index(65529);
    assert!(driver.ring().pop(&mut Chain::default()).is_err());
}

#[test]
fn a_head_beyond_the_ring_is_refused() {
    let expected = "descriptor head 8 is beyond the ring size 8";
    refused(&mut Driver::new(8, 0), 8, expected);
    let expected = "descriptor head 65535 is beyond the ring size 8";
    refused(&mut Driver::new(8, 0), 65535, expected);
}

#[test]
fn a_head_that_is_in_flight_is_refused_until_it_was_returned() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    let mut chain = Chain::default();
    driver.offer(5, &[(BUFFERS, 1, 0)]);
    let head = ring.pop(&mut chain).unwrap().unwrap();
    ring.push_used(head, 0);
    driver.make_available(5);
    driver.make_available(5);
    assert!(ring.pop(&mut chain).unwrap().is_some());
    let error = ring.pop(&mut chain).unwrap_err();
    assert_eq!(error, RingError::HeadInFlight { head: 5 });
}

#[test]
#[should_panic(expected = "without being in flight")]
fn returning_a_chain_twice_is_our_own_mistake() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.offer(5, &[(BUFFERS, 1, 0)]);
    let head = ring.pop(&mut Chain::default()).unwrap().unwrap();
    ring.push_used(head, 0);
    ring.push_used(head, 0);
}

#[test]
fn descriptors_that_loop_or_leave_the_table_are_refused() {
    let mut driver = Driver::new(4, 0);
    driver.set_descriptor(0, link(1));
    driver.set_descriptor(1, link(0));
    let expected = "chain 0 loops: it is longer than its table of 4 descriptors";
    refused(&mut driver, 0, expected);
    let mut driver = Driver::new(4, 0);
    driver.set_descriptor(2, link(2));
    let expected = "chain 2 loops: it is longer than its table of 4 descriptors";
    refused(&mut driver, 2, expected);
    let mut driver = Driver::new(4, 0);
    driver.set_descriptor(1, link(4));
    refused(&mut driver, 1, "chain 1: descriptor 4 is beyond its table of 4");
}

#[test]
fn buffers_outside_memory_are_refused() {
    for address in [0, GUEST - 16, END - 15, END, u64::MAX, u64::MAX - 15] {
        refused_chain(
            &[(BUFFERS, 16, 0), (address, 16, WRITE)],
            &format!("chain 0: 16 bytes at guest address {address:#x} are not in guest memory"),
        );
    }
    let expected = "chain 0: 4294967295 bytes at guest address 0x100000 are not in guest memory";
    refused_chain(&[(GUEST, u32::MAX, WRITE)], expected);
}

#[test]
fn empty_buffers_and_readable_after_writable_are_refused() {
    let expected = "chain 0: buffer at guest address 0x1f0000 is empty";
    refused_chain(&[(BUFFERS, 0, 0)], expected);
    refused_chain(
        &[(BUFFERS, 1, WRITE), (BUFFERS, 1, 0)],
        "chain 0: a readable descriptor follows a writable one",
    );
}

#[test]
fn an_indirect_table_has_one_to_many_whole_descriptors() {
    for bytes in [0, 8, 15, 17, 32769 * 16] {
        refused_chain(
            &[(BUFFERS, bytes, INDIRECT)],
            &format!(
                "chain 0: indirect table of {bytes} bytes is not 1 to 32768 descriptors of 16 bytes"
            ),
        );
    }
    refused_chain(
        &[(END - 16, 32, INDIRECT | NEXT), (BUFFERS, 1, 0)],
        "chain 0: indirect descriptor with a next descriptor",
    );
}

/// Pops a chain of one indirect descriptor whose table is `table` at `address`.
fn pop_table(address: u64, table: &[Descriptor]) -> Result<Chain, RingError> {
    let mut driver = Driver::new(8, 0);
    driver.set_table(address, table);
    let bytes = u32::try_from(16 * table.len()).expect("the table is small");
    let (_, chain) = driver.chain(&[(address, bytes, INDIRECT)])?;
    Ok(chain)
}

#[track_caller]
fn refused_table(table: &[Descriptor], expected: &str) {
    let error = pop_table(BUFFERS, table).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn an_indirect_table_must_be_sound_inside() {
    refused_table(
        &[link(1), link(0)],
        "chain 0 loops: it is longer than its table of 2 descriptors",
    );
    refused_table(&[link(1)], "chain 0: descriptor 1 is beyond its table of 1");
    refused_table(
        &[Descriptor { flags: INDIRECT, ..link(0) }],
        "chain 0: indirect table inside an indirect table",
    );
}

#[test]
fn an_indirect_table_outside_memory_is_refused() {
    let mut driver = Driver::new(8, 0);
    driver.set_table(END - 16, &[link(1)]);
    let error = driver.chain(&[(END - 16, 32, INDIRECT)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "chain 0: 16 bytes at guest address 0x300000 are not in guest memory"
    );
    let mut driver = Driver::new(8, 0);
    assert!(driver.chain(&[(u64::MAX - 15, 32, INDIRECT)]).is_err());
}

#[test]
fn an_indirect_table_may_cross_regions_and_follow_plain_descriptors() {
    let last = Descriptor { flags: WRITE, ..link(0) };
    // The second descriptor lies in both regions.
    let chain = pop_table(GUEST + REGION - 24, &[link(1), link(2), last]).unwrap();
    assert_eq!((chain.readable.count(), chain.writable.count()), (32, 16));
    let mut driver = Driver::new(8, 0);
    driver.set_table(BUFFERS, &[last]);
    let (_, chain) = driver.chain(&[(BUFFERS, 5, 0), (BUFFERS, 16, INDIRECT)]).unwrap();
    assert_eq!((chain.readable.count(), chain.writable.count()), (5, 16));
}

#[test]
fn indirect_descriptors_need_the_feature() {
    let mut driver = Driver::new(8, 0);
    driver.offer(0, &[(BUFFERS, 16, INDIRECT)]);
    let mut ring =
        driver.ring_with(RingSetup { indirect: false, base: RingBase(0), ..driver.setup() });
    assert_eq!(
        ring.pop(&mut Chain::default()).unwrap_err(),
        RingError::Chain { head: 0, problem: ChainProblem::IndirectNotNegotiated }
    );
}

#[test]
fn a_chain_has_a_bounded_number_of_segments() {
    let table = |count: u16| -> Vec<Descriptor> {
        let mut table: Vec<Descriptor> = (1..=count).map(link).collect();
        table[usize::from(count) - 1].flags = 0;
        table
    };
    let most = u16::try_from(SEGMENTS_MAX).unwrap();
    let chain = pop_table(BUFFERS, &table(most)).unwrap();
    assert_eq!(chain.readable.segments().len(), SEGMENTS_MAX);
    let expected = "chain 0 has more than 1026 segments";
    refused_table(&table(most + 1), expected);
}

#[track_caller]
fn refused_setup(setup: RingSetup, expected: &str) {
    let memory = Arc::clone(&Driver::new(8, 0).memory);
    let error = Ring::new(memory, setup).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_ring_of_impossible_size_or_place_is_refused() {
    let good = Driver::new(8, 0).setup();
    for size in [0, 3, 100, 32769, 65535] {
        refused_setup(
            RingSetup { size, ..good },
            &format!("ring size {size} is not a power of two from 1 to 32768"),
        );
    }
    refused_setup(
        RingSetup { base: RingBase(65536), ..good },
        "base 0x10000 is no position in a split ring of 8 descriptors",
    );
    let with = |change: fn(&mut RingAddresses)| {
        let mut setup = good;
        change(&mut setup.addresses);
        setup
    };
    refused_setup(
        with(|a| a.descriptors = 0),
        "the descriptor table of 128 bytes at front-end address 0x0 is not in guest memory",
    );
    refused_setup(
        with(|a| a.used = u64::MAX),
        "the used ring of 70 bytes at front-end address 0xffffffffffffffff is not in guest memory",
    );
    refused_setup(
        with(|a| a.available += REGION - 0x8_0000 - 20),
        "the available ring of 22 bytes at front-end address 0x7f00000fffec is not in guest memory",
    );
    refused_setup(
        with(|a| a.descriptors += 8),
        "the descriptor table at front-end address 0x7f0000000008 is not aligned to 16 bytes",
    );
    refused_setup(
        with(|a| a.available += 1),
        "the available ring at front-end address 0x7f0000080001 is not aligned to 2 bytes",
    );
    refused_setup(
        with(|a| a.used += 2),
        "the used ring at front-end address 0x7f00000a0002 is not aligned to 4 bytes",
    );
}
