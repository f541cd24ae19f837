//! Packed rings as no honest driver writes them: each is refused with a sentence, none does harm.

use std::sync::Arc;

use virtio::{
    Chain, ChainProblem, Ring, RingAddresses, RingBase, RingError, RingSetup, SEGMENTS_MAX,
    catch_lost_memory,
};

use super::driver::{Descriptor, Driver, INDIRECT, NEXT, Place, WRITE};
use crate::guest::{BUFFERS, END, GUEST, REGION};

const ONE: &[(u64, u32, u16)] = &[(BUFFERS, 16, 0)];

#[track_caller]
fn refused_chain(buffers: &[(u64, u32, u16)], expected: &str) {
    let error = Driver::new(8).chain(buffers).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_buffer_id_beyond_the_ring_is_refused() {
    for id in [8, 65535] {
        let mut driver = Driver::new(8);
        let mut ring = driver.ring();
        driver.offer(id, ONE);
        let error = ring.pop(&mut Chain::default()).unwrap_err();
        assert_eq!(error.to_string(), format!("buffer id {id} is beyond the ring size 8"));
    }
}

#[test]
fn a_buffer_id_that_is_in_flight_is_refused_until_it_was_returned() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring();
    let mut chain = Chain::default();
    driver.offer(5, ONE);
    let head = ring.pop(&mut chain).unwrap().unwrap();
    ring.push_used(head, 0);
    let _interrupt = ring.publish();
    driver.offer(5, ONE);
    driver.offer(5, ONE);
    assert!(ring.pop(&mut chain).unwrap().is_some());
    let error = ring.pop(&mut chain).unwrap_err();
    assert_eq!(error, RingError::IdInFlight { id: 5 });
    let sentence = "buffer id 5 was made available while its request is in flight";
    assert_eq!(error.to_string(), sentence);
}

#[test]
#[should_panic(expected = "without being in flight")]
fn returning_a_chain_twice_is_our_own_mistake() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring();
    driver.offer(5, ONE);
    let head = ring.pop(&mut Chain::default()).unwrap().unwrap();
    ring.push_used(head, 0);
    ring.push_used(head, 0);
}

/// A chain without an end.
fn endless(driver: &Driver) {
    for slot in 0..driver.size {
        // Bit 7 is the available flag of the first round.
        let flags = NEXT | 1 << 7;
        driver.set_descriptor(slot, Descriptor { address: BUFFERS, bytes: 1, id: 0, flags });
    }
}

#[test]
fn a_chain_longer_than_the_ring_is_refused() {
    for size in [1, 8, 1000] {
        let driver = Driver::new(size);
        let mut ring = driver.ring();
        endless(&driver);
        let error = ring.pop(&mut Chain::default()).unwrap_err();
        let expected = format!(
            "chain 0 is longer than the {size} descriptors of the ring that are not in use"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_chain_that_reaches_into_descriptors_in_flight_is_refused() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring();
    let mut chain = Chain::default();
    driver.offer(0, &[(BUFFERS, 16, 0), (BUFFERS, 16, 0), (BUFFERS, 1, WRITE)]);
    let head = ring.pop(&mut chain).unwrap().unwrap();
    driver.offer(1, &[(BUFFERS, 1, 0); 6]);
    let error = ring.pop(&mut chain).unwrap_err();
    assert_eq!(error, RingError::Chain { head: 3, problem: ChainProblem::TooLong { free: 5 } });
    // Not even staging makes room: the driver has not seen it.
    ring.push_used(head, 0);
    let error = ring.pop(&mut chain).unwrap_err();
    assert_eq!(error, RingError::Chain { head: 3, problem: ChainProblem::TooLong { free: 5 } });
}

#[test]
fn a_ring_that_is_all_in_flight_takes_nothing_more() {
    let mut driver = Driver::new(3);
    let mut ring = driver.ring();
    let mut chain = Chain::default();
    for id in [0, 1] {
        driver.offer(id, ONE);
        assert!(ring.pop(&mut chain).unwrap().is_some());
    }
    driver.offer(2, &[(BUFFERS, 64, INDIRECT)]);
    driver.set_table(BUFFERS, &[Descriptor { address: BUFFERS, bytes: 1, id: 9, flags: 0 }; 4]);
    assert!(ring.pop(&mut chain).unwrap().is_some());
    assert_eq!(chain.readable.count(), 4);
    assert!(ring.pop(&mut chain).unwrap().is_none());
    driver.offer(0, ONE);
    let error = ring.pop(&mut chain).unwrap_err();
    assert_eq!(error, RingError::Chain { head: 0, problem: ChainProblem::TooLong { free: 0 } });
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
    for bytes in [0, 8, 15, 17, 32769 * 16, 65537 * 16, u32::MAX] {
        refused_chain(
            &[(BUFFERS, bytes, INDIRECT)],
            &format!(
                "chain 0: indirect table of {bytes} bytes is not 1 to 32768 descriptors of 16 bytes"
            ),
        );
    }
    refused_chain(
        &[(BUFFERS, 32, INDIRECT), (BUFFERS, 1, 0)],
        "chain 0: indirect descriptor with a next descriptor",
    );
    refused_chain(
        &[(BUFFERS, 1, 0), (BUFFERS, 32, INDIRECT)],
        "chain 0: indirect descriptor behind a plain one",
    );
}

fn pop_table(address: u64, table: &[Descriptor]) -> Result<Chain, RingError> {
    let mut driver = Driver::new(8);
    driver.set_table(address, table);
    let bytes = u32::try_from(16 * table.len()).expect("the table is small");
    driver.chain(&[(address, bytes, INDIRECT)])
}

const ENTRY: Descriptor = Descriptor { address: BUFFERS, bytes: 16, id: 0xffff, flags: 0 };

#[test]
fn in_an_indirect_table_only_the_writable_flag_counts() {
    let odd = |flags| Descriptor { flags, ..ENTRY };
    // The second descriptor lies in both regions.
    let address = GUEST + REGION - 24;
    let table = [odd(INDIRECT), odd(NEXT | 1 << 7), odd(WRITE), odd(WRITE | NEXT)];
    let chain = pop_table(address, &table).unwrap();
    assert_eq!((chain.readable.count(), chain.writable.count()), (32, 32));
}

#[test]
fn an_indirect_table_outside_memory_is_refused() {
    let mut driver = Driver::new(8);
    driver.set_table(END - 16, &[ENTRY]);
    let error = driver.chain(&[(END - 16, 32, INDIRECT)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "chain 0: 16 bytes at guest address 0x300000 are not in guest memory"
    );
    assert!(Driver::new(8).chain(&[(u64::MAX - 15, 32, INDIRECT)]).is_err());
}

#[test]
fn indirect_descriptors_need_the_feature() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring_with(RingSetup { indirect: false, ..driver.setup() });
    driver.offer(0, &[(BUFFERS, 16, INDIRECT)]);
    assert_eq!(
        ring.pop(&mut Chain::default()).unwrap_err(),
        RingError::Chain { head: 0, problem: ChainProblem::IndirectNotNegotiated }
    );
}

#[test]
fn a_chain_has_a_bounded_number_of_segments() {
    let chain = pop_table(BUFFERS, &[ENTRY; SEGMENTS_MAX]).unwrap();
    assert_eq!(chain.readable.segments().len(), SEGMENTS_MAX);
    let error = pop_table(BUFFERS, &[ENTRY; SEGMENTS_MAX + 1]).unwrap_err();
    assert_eq!(error.to_string(), "chain 0 has more than 1026 segments");
}

#[track_caller]
fn refused_setup(setup: RingSetup, expected: &str) {
    let memory = Arc::clone(&Driver::new(8).memory);
    let checked = setup.check(&memory).and_then(|()| setup.check_base()).expect_err(expected);
    assert_eq!(checked.to_string(), expected);
    let error = Ring::new(memory, setup).expect_err(expected);
    assert_eq!(error, checked);
}

#[test]
fn a_ring_of_impossible_size_or_base_is_refused() {
    let good = Driver::new(8).setup();
    for size in [0, 32769, 65535] {
        refused_setup(
            RingSetup { size, ..good },
            &format!("packed ring size {size} is not from 1 to 32768"),
        );
    }
    refused_setup(
        RingSetup { base: RingBase(0x8000_8008), ..good },
        "base 0x80008008 is no position in a packed ring of 8 descriptors",
    );
}

#[test]
fn a_ring_at_an_impossible_place_is_refused() {
    let good = Driver::new(8).setup();
    let with = |change: fn(&mut RingAddresses)| {
        let mut setup = good;
        change(&mut setup.addresses);
        setup
    };
    refused_setup(
        with(|a| a.descriptors = 0),
        "the descriptor ring of 128 bytes at front-end address 0x0 is not in guest memory",
    );
    refused_setup(
        with(|a| a.descriptors += 8),
        "the descriptor ring at front-end address 0x7f0000000008 is not aligned to 16 bytes",
    );
    refused_setup(
        with(|a| a.available = u64::MAX),
        "the driver event suppression of 4 bytes at front-end address 0xffffffffffffffff is not in \
         guest memory",
    );
    refused_setup(
        with(|a| a.available += 2),
        "the driver event suppression at front-end address 0x7f0000080002 is not aligned to 4 bytes",
    );
    refused_setup(
        with(|a| a.used += 1),
        "the device event suppression at front-end address 0x7f0000080011 is not aligned to 4 bytes",
    );
}

#[test]
fn a_ring_without_memory_says_so() {
    catch_lost_memory().unwrap();
    for wrap in [true, false] {
        let mut driver = Driver::at(8, Place { slot: 4, wrap });
        let mut ring = driver.ring();
        driver.offer(0, ONE);
        let head = ring.pop(&mut Chain::default()).unwrap().expect("a chain was offered");
        driver.truncate(0);
        ring.push_used(head, 0);
        let _interrupt = ring.publish();
        assert!(ring.request_kicks(), "the caller must look again");
        assert_eq!(ring.pop(&mut Chain::default()), Err(RingError::MemoryLost));
        assert!(matches!(
            Ring::new(Arc::clone(&driver.memory), driver.setup()),
            Err(RingError::MemoryLost)
        ));
    }
}
