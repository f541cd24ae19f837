//! Mapping, translation, and tables that are refused.

use std::sync::Arc;

use virtio::{
    GuestAddress, GuestMemory, MemoryError, REGIONS_MAX, Region, RegionSpec, TranslationHint,
};

use crate::driver::Driver;
use crate::guest::{BUFFERS, END, GUEST, REGION, bytes, map, memfd};

const PAGE: u64 = 4096;

fn spec(guest: u64, bytes: u64, user_address: u64, file_offset: u64) -> RegionSpec {
    RegionSpec { guest: GuestAddress(guest), bytes, user_address, file_offset }
}

#[track_caller]
fn refused(file_bytes: u64, spec: RegionSpec, expected: &str) {
    let error = Region::map(memfd(file_bytes), spec, &Arc::default()).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_region_that_is_empty_wraps_or_leaves_its_file_is_refused() {
    refused(PAGE, spec(0x1000, 0, 0, 0), "memory region at guest address 0x1000 is empty");
    refused(
        PAGE,
        spec(0x1000, PAGE, 0, 1),
        "memory region at guest address 0x1000 ends at byte 4097 of a file of 4096 bytes",
    );
    let wraps = |spec| {
        let error = Region::map(memfd(PAGE), spec, &Arc::default()).unwrap_err();
        assert!(matches!(error, MemoryError::Wraps { .. }), "{error}");
    };
    wraps(spec(u64::MAX, PAGE, 0, 0));
    wraps(spec(0, PAGE, u64::MAX - 1, 0));
    wraps(spec(0, PAGE, 0, u64::MAX - 4000));
    wraps(spec(1, u64::MAX, 0, 0));
}

#[test]
fn a_region_may_start_inside_a_page_of_its_file() {
    let fd = memfd(3 * PAGE);
    let region = map(&fd, spec(0x1000, PAGE, 0x9000, PAGE + 16));
    let memory = GuestMemory::new(vec![region]).unwrap();
    rustix::io::pwrite(&fd, b"here", PAGE + 16 + 100).unwrap();
    let mut found = block::Buffers::default();
    memory
        .translate(GuestAddress(0x1064), 4, &mut TranslationHint::default(), |s| {
            found.push(s);
        })
        .unwrap();
    assert_eq!(bytes(&found), b"here");
}

#[test]
fn overlapping_regions_are_refused_in_guest_and_in_front_end_addresses() {
    let fd = memfd(4 * PAGE);
    let first = map(&fd, spec(0x1000, 2 * PAGE, 0x10_0000, 0));
    let guest = map(&fd, spec(0x2000, PAGE, 0x20_0000, 0));
    let user = map(&fd, spec(0x8000, PAGE, 0x10_1000, 0));
    let error = GuestMemory::new(vec![guest, Arc::clone(&first)]).unwrap_err();
    assert_eq!(error.to_string(), "memory regions at guest addresses 0x1000 and 0x2000 overlap");
    let error = GuestMemory::new(vec![user, first]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "memory regions at front-end addresses 0x100000 and 0x101000 overlap"
    );
}

#[test]
fn more_regions_than_slots_are_refused() {
    let fd = memfd(PAGE);
    let regions =
        (0..=REGIONS_MAX as u64).map(|n| map(&fd, spec(n * PAGE, PAGE, n * PAGE, 0))).collect();
    let error = GuestMemory::new(regions).unwrap_err();
    assert_eq!(error.to_string(), "510 memory regions, at most 509 are possible");
}

#[test]
fn a_region_comes_and_goes_by_its_addresses_and_size() {
    let place = spec(0x1000, PAGE, 0x9000, 0);
    let region = Region::map(memfd(PAGE), place, &Arc::default()).unwrap();
    let memory = GuestMemory::default().with(region).unwrap();
    assert!(memory.at_user_address(0x9000, PAGE).is_some());
    assert!(memory.at_user_address(0x9001, PAGE).is_none());
    assert!(memory.at_user_address(0x8fff, 1).is_none());
    assert!(memory.at_user_address(0x9000, u64::MAX).is_none());
    let other = RegionSpec { bytes: PAGE - 1, ..place };
    assert!(memory.without(&other).is_err());
    // The file offset does not count.
    let same = RegionSpec { file_offset: 77, ..place };
    let empty = memory.without(&same).unwrap();
    assert!(empty.at_user_address(0x9000, 1).is_none());
    assert!(empty.without(&same).is_err());
}

#[track_caller]
fn check(address: u64, count: u32, expected: Option<&[usize]>) {
    let driver = Driver::new(8, 0);
    let mut segments = Vec::new();
    let result = driver.memory.translate(
        GuestAddress(address),
        count,
        &mut TranslationHint::default(),
        |s| {
            segments.push(s.count());
        },
    );
    match expected {
        Some(expected) => {
            result.expect("all bytes are in memory");
            assert_eq!(segments, expected);
        }
        None => assert!(result.is_err(), "{count} bytes at {address:#x}"),
    }
}

#[test]
fn a_buffer_is_found_whole_across_a_border_or_not_at_all() {
    check(GUEST, 16, Some(&[16]));
    check(GUEST + REGION - 6, 16, Some(&[6, 10]));
    check(GUEST + REGION, 16, Some(&[16]));
    check(END - 16, 16, Some(&[16]));
    check(END - 16, 17, None);
    check(GUEST - 1, 2, None);
    check(0, 1, None);
    check(END, 1, None);
    check(u64::MAX, 1, None);
    check(u64::MAX, u32::MAX, None);
    check(GUEST, 0, Some(&[]));
}

#[test]
fn the_last_hit_never_changes_an_answer() {
    let driver = Driver::new(8, 0);
    let mut hit = TranslationHint::default();
    driver.write(BUFFERS, b"low");
    driver.write(GUEST + REGION, b"top");
    for (address, expected) in
        [(BUFFERS, b"low"), (GUEST + REGION, b"top"), (GUEST + REGION, b"top"), (BUFFERS, b"low")]
    {
        let mut found = block::Buffers::default();
        driver.memory.translate(GuestAddress(address), 3, &mut hit, |s| found.push(s)).unwrap();
        assert_eq!(bytes(&found), expected);
    }
}
