//! Decoding of virtio-blk requests, however the driver cuts them.

use std::sync::Arc;

use block::{
    Access, ByteCount, ByteOffset, DiskSize, Durability, Extent, FailKind, Operation, Outcome,
    ZeroTerms,
};
use virtio::{
    BlkRequest, BlkRequestKind, BlkRules, Chain, GuestAddress, MalformedRequest, Region,
    RegionSpec, decode, status_byte, write_id, write_status,
};

use crate::driver::{Driver, WRITE};
use crate::guest::{BUFFERS, bytes, memfd};

const SIZE: DiskSize = DiskSize(ByteCount(64 << 20));
const RULES: BlkRules = BlkRules {
    size: SIZE,
    access: Access::ReadWrite,
    durability: Durability::Cached,
    discard: true,
    write_zeroes: true,
};
/// Where the device writes.
const ANSWER: u64 = BUFFERS + 0x4000;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

fn extent(start: u64, count: u64) -> Extent {
    SIZE.check(ByteOffset(start), ByteCount(count)).expect("the extent lies in the disk")
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    let mut header = Vec::from(kind.to_le_bytes());
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    header
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = Vec::from(sector.to_le_bytes());
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

/// A chain whose readable bytes are `readable`, cut to pieces of the given lengths (the last one
/// takes the rest), and with `writable` bytes to write in one piece.
fn chain(driver: &mut Driver, readable: &[u8], cuts: &[usize], writable: u32) -> Chain {
    driver.write(BUFFERS, readable);
    let mut buffers = Vec::new();
    let mut at = 0;
    for cut in cuts.iter().copied().chain([readable.len()]) {
        let count = cut.min(readable.len() - at);
        if count > 0 {
            let bytes = u32::try_from(count).expect("requests are small here");
            buffers.push((BUFFERS + at as u64, bytes, 0));
            at += count;
        }
    }
    if writable > 0 {
        buffers.push((ANSWER, writable, WRITE));
    }
    driver.chain(&buffers).expect("the chain is sound").1
}

fn decoded(
    readable: &[u8],
    writable: u32,
    rules: &BlkRules,
) -> Result<BlkRequest, MalformedRequest> {
    let mut driver = Driver::new(64, 0);
    decode(&mut chain(&mut driver, readable, &[], writable), rules)
}

#[track_caller]
fn check_rules(rules: &BlkRules, readable: &[u8], writable: u32, expected: BlkRequestKind) {
    let request =
        decoded(readable, writable, rules).expect("the request has a header and a status");
    assert_eq!(request.kind, expected);
    assert_eq!(request.status.count(), 1);
}

#[track_caller]
fn check(readable: &[u8], writable: u32, expected: BlkRequestKind) {
    check_rules(&RULES, readable, writable, expected);
}

fn with_data(kind: u32, sector: u64, data: &[u8]) -> Vec<u8> {
    let mut all = header(kind, sector);
    all.extend(data);
    all
}

#[test]
fn reads_and_writes_are_whole_sectors_inside_the_disk() {
    let last = SIZE.sectors() - 1;
    let read = |start, count| BlkRequestKind::Disk(Operation::Read(extent(start, count)));
    check(&header(IN, 0), 513, read(0, 512));
    check(&header(IN, last), 513, read(last * 512, 512));
    check(&header(IN, 5), 1, read(2560, 0));
    check(&header(IN, 0), 100, BlkRequestKind::Refused(FailKind::Malformed));
    let out_of_range = BlkRequestKind::Refused(FailKind::OutOfRange);
    check(&header(IN, last), 1025, out_of_range);
    check(&header(IN, last + 2), 1, out_of_range);
    check(&header(IN, u64::MAX), 513, out_of_range);
    check(&header(IN, u64::MAX / 512), 513, out_of_range);
    let write = with_data(OUT, 8, &[7; 1024]);
    let operation = Operation::Write(extent(4096, 1024), Durability::Cached);
    check(&write, 1, BlkRequestKind::Disk(operation));
    let odd = with_data(OUT, 8, &[7; 1000]);
    check(&odd, 1, BlkRequestKind::Refused(FailKind::Malformed));
    check(&with_data(OUT, last, &[7; 1024]), 1, out_of_range);
}

#[test]
fn the_data_stay_in_the_chain_and_the_status_is_the_last_byte() {
    let mut driver = Driver::new(64, 0);
    let data: Vec<u8> = (0..=255).cycle().take(512).collect();
    let mut write = chain(&mut driver, &with_data(OUT, 0, &data), &[], 1);
    let request = decode(&mut write, &RULES).unwrap();
    assert_eq!(bytes(&write.readable), data);
    write_status(request.status, 0x55);
    assert_eq!(driver.read(ANSWER, 1), [0x55]);

    let mut driver = Driver::new(64, 0);
    let mut read = chain(&mut driver, &header(IN, 0), &[], 513);
    let request = decode(&mut read, &RULES).unwrap();
    assert_eq!(read.writable.count(), 512);
    read.writable.copy_from(0, &data);
    write_status(request.status, 2);
    assert_eq!(driver.read(ANSWER, 512), data);
    assert_eq!(driver.read(ANSWER + 512, 1), [2]);
}

#[test]
fn the_header_may_be_cut_anywhere() {
    let write = with_data(OUT, 8, &[7; 512]);
    for cut in 1..=16 {
        let mut driver = Driver::new(64, 0);
        // As many pieces of this length as it takes, and the same with a first piece of one byte.
        for cuts in [vec![cut; 32], [&[1][..], &[cut; 32]].concat()] {
            let mut chain = chain(&mut driver, &write, &cuts, 1);
            let kind = decode(&mut chain, &RULES).unwrap().kind;
            let operation = Operation::Write(extent(4096, 512), Durability::Cached);
            assert_eq!(kind, BlkRequestKind::Disk(operation), "cut at {cut}");
            assert_eq!(bytes(&chain.readable), [7; 512]);
        }
    }
}

#[test]
fn a_request_without_status_or_header_breaks_the_ring() {
    assert_eq!(decoded(&header(IN, 0), 0, &RULES).unwrap_err(), MalformedRequest::Status);
    for bytes in [0, 1, 15] {
        let error = decoded(&header(IN, 0)[..bytes], 1, &RULES).unwrap_err();
        assert_eq!(error, MalformedRequest::Header { bytes });
    }
    let error = MalformedRequest::Header { bytes: 3 }.to_string();
    assert_eq!(error, "request with a header of 3 instead of 16 bytes");
}

#[test]
fn flush_and_get_id_need_no_more_than_a_status() {
    check(&header(FLUSH, 0), 1, BlkRequestKind::Disk(Operation::Flush));
    check(&header(GET_ID, 0), 21, BlkRequestKind::GetId);
    check(&header(GET_ID, 0), 1, BlkRequestKind::GetId);
    for unknown in [2, 3, 5, 10, 14, 24, u32::MAX] {
        let unsupported = BlkRequestKind::Refused(FailKind::Unsupported);
        check(&header(unknown, 0), 1, unsupported);
    }
}

#[track_caller]
fn check_id(id: &str, room: u32, expected: &[u8]) {
    let mut driver = Driver::new(64, 0);
    driver.write(ANSWER, &[0xff; 32]);
    let mut chain = chain(&mut driver, &header(GET_ID, 0), &[], room + 1);
    decode(&mut chain, &RULES).expect("the request has a header and a status");
    assert_eq!(write_id(&mut chain.writable, id), expected.len());
    assert_eq!(driver.read(ANSWER, expected.len()), expected);
    assert_eq!(driver.read(ANSWER + expected.len() as u64, 1), [0xff]);
}

#[test]
fn the_id_is_cut_or_filled_up_to_what_the_guest_asks_for() {
    check_id("disk0", 20, b"disk0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    check_id("disk0", 3, b"dis");
    check_id("disk0", 0, b"");
    check_id("a-name-of-more-than-twenty-bytes", 20, b"a-name-of-more-than-");
    check_id("disk0", 30, b"disk0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn discards_and_write_zeroes_have_one_range_in_the_disk() {
    let discard = Operation::Discard(extent(4096, 8192), Durability::Cached);
    check(&with_data(DISCARD, 0, &range(8, 16, 0)), 1, BlkRequestKind::Disk(discard));
    for (flags, terms) in [(0, ZeroTerms::KEEP), (1, ZeroTerms::UNMAP)] {
        let zeroes = Operation::WriteZeroes(extent(0, 512), terms, Durability::Cached);
        let request = with_data(WRITE_ZEROES, 0, &range(0, 1, flags));
        check(&request, 1, BlkRequestKind::Disk(zeroes));
    }
    let whole = Operation::Discard(extent(0, 16 << 20), Durability::Cached);
    check(&with_data(DISCARD, 0, &range(0, 32768, 0)), 1, BlkRequestKind::Disk(whole));
    let nothing = Operation::Discard(extent(512, 0), Durability::Cached);
    check(&with_data(DISCARD, 0, &range(1, 0, 0)), 1, BlkRequestKind::Disk(nothing));
    for kind in [DISCARD, WRITE_ZEROES] {
        let refused = |ranges: &[u8], expected| {
            check(&with_data(kind, 0, ranges), 1, BlkRequestKind::Refused(expected));
        };
        refused(&range(0, 32769, 0), FailKind::Malformed);
        refused(&range(SIZE.sectors(), 1, 0), FailKind::OutOfRange);
        refused(&range(u64::MAX, 1, 0), FailKind::OutOfRange);
        refused(&range(0, 1, 2), FailKind::Unsupported);
        refused(&range(0, 1, 0x8000_0000), FailKind::Unsupported);
        refused(&range(0, 1, 0).repeat(2), FailKind::Unsupported);
        refused(&range(0, 1, 0)[..15], FailKind::Malformed);
        refused(&[], FailKind::Malformed);
    }
    // Unmap makes no sense for a discard.
    let unmap = with_data(DISCARD, 0, &range(0, 1, 1));
    check(&unmap, 1, BlkRequestKind::Refused(FailKind::Unsupported));
}

#[test]
fn what_the_disk_does_not_take_is_refused() {
    let read_only = BlkRules { access: Access::ReadOnly, ..RULES };
    let changes = [
        with_data(OUT, 0, &[0; 512]),
        with_data(DISCARD, 0, &range(0, 1, 0)),
        with_data(WRITE_ZEROES, 0, &range(0, 1, 0)),
    ];
    for change in &changes {
        check_rules(&read_only, change, 1, BlkRequestKind::Refused(FailKind::ReadOnly));
    }
    let read = BlkRequestKind::Disk(Operation::Read(extent(0, 512)));
    check_rules(&read_only, &header(IN, 0), 513, read);
    check_rules(&read_only, &header(FLUSH, 0), 1, BlkRequestKind::Disk(Operation::Flush));
    let plain = BlkRules { discard: false, write_zeroes: false, ..RULES };
    for change in &changes[1..] {
        check_rules(&plain, change, 1, BlkRequestKind::Refused(FailKind::Unsupported));
    }
}

#[test]
fn write_through_goes_with_every_change() {
    let rules = BlkRules { durability: Durability::Stable, ..RULES };
    let requests = [
        with_data(OUT, 0, &[0; 512]),
        with_data(DISCARD, 0, &range(0, 1, 0)),
        with_data(WRITE_ZEROES, 0, &range(0, 1, 0)),
    ];
    for request in &requests {
        match decoded(request, 1, &rules).unwrap().kind {
            BlkRequestKind::Disk(operation) => {
                assert_eq!(operation.durability(), Durability::Stable)
            }
            other @ (BlkRequestKind::GetId | BlkRequestKind::Refused(_)) => panic!("{other:?}"),
        }
    }
}

#[test]
fn data_beyond_two_gigabytes_are_refused() {
    let rules = BlkRules { size: DiskSize(ByteCount(1 << 40)), ..RULES };
    // A gigabyte that nobody touches, named twice.
    let large = RegionSpec {
        guest: GuestAddress(1 << 30),
        bytes: 1 << 30,
        user_address: 0x10_0000,
        file_offset: 0,
    };
    let mut driver = Driver::new(8, 0);
    let region = Region::map(memfd(1 << 30), large, &Arc::default()).unwrap();
    driver.guest.memory = Arc::new(driver.memory.with(region).unwrap());
    driver.write(BUFFERS, &header(IN, 0));
    for (less, refused) in [(512, false), (0, true)] {
        let buffers = [
            (BUFFERS, 16, 0),
            (1 << 30, 1 << 30, WRITE),
            (1 << 30, (1 << 30) - less, WRITE),
            (ANSWER, 1, WRITE),
        ];
        let (_, mut chain) = driver.chain(&buffers).unwrap();
        let kind = decode(&mut chain, &rules).unwrap().kind;
        assert_eq!(kind == BlkRequestKind::Refused(FailKind::Malformed), refused);
    }
}

#[test]
fn every_outcome_has_its_status() {
    assert_eq!(status_byte(Outcome::Done), 0);
    assert_eq!(status_byte(Outcome::Failed(FailKind::Unsupported)), 2);
    for kind in [
        FailKind::Io,
        FailKind::NoSpace,
        FailKind::ReadOnly,
        FailKind::OutOfRange,
        FailKind::Malformed,
    ] {
        assert_eq!(status_byte(Outcome::Failed(kind)), 1);
    }
}
