//! Replies as servers send them, in pieces of any length, and as they must not.

use nbd_wire::{error, state};

use super::*;

/// What was said, with the bytes of data.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Data(u32, u64, Vec<u8>),
    Zeroes(u32, u64, u64),
    Extent(u32, u64, u64, u32),
    Over(u32, u32),
}

/// Gives a reader these bytes in pieces; what it says, and what is wrong.
fn read(reader: &mut ReplyReader, bytes: &[u8], piece: usize) -> (Vec<Said>, Option<ReplyFault>) {
    let (mut said, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match reader.next(&bytes[start..end]) {
            Err(fault) => return (said, Some(fault)),
            Ok((0, None)) if end == bytes.len() => return (said, None),
            Ok((0, None)) => end = bytes.len().min(end + piece),
            Ok((taken, event)) => {
                start += taken;
                said.extend(event.map(|event| match event {
                    ReplyEvent::Data { slot, skip, bytes } => Said::Data(slot, skip, bytes.into()),
                    ReplyEvent::Zeroes { slot, skip, count } => Said::Zeroes(slot, skip, count),
                    ReplyEvent::Extent { slot, skip, count, state } => {
                        Said::Extent(slot, skip, count, state)
                    }
                    ReplyEvent::Over { slot, error } => Said::Over(slot, error),
                }));
            }
        }
    }
}

fn reader(style: HeaderStyle, requests: &[(u16, u64, u64)]) -> (ReplyReader, Vec<u64>) {
    let mut reader = ReplyReader::new(style, Some(9));
    let cookies = requests.iter().enumerate().map(|(slot, (command, offset, count))| {
        let request = WireRequest { command: *command, flags: 0, offset: *offset, count: *count };
        reader.expect(slot.try_into().unwrap(), &request)
    });
    let cookies = cookies.collect();
    (reader, cookies)
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut bytes = reply_magic::SIMPLE.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

/// A structured chunk, or an extended one if it has an offset.
fn chunk_of(flags: u16, kind: u16, cookie: u64, offset: Option<u64>, body: &[u8]) -> Vec<u8> {
    let magic = if offset.is_some() { reply_magic::EXTENDED } else { reply_magic::STRUCTURED };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    match offset {
        Some(offset) => {
            bytes.extend(offset.to_be_bytes());
            bytes.extend((body.len() as u64).to_be_bytes());
        }
        None => bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes()),
    }
    bytes.extend(body);
    bytes
}

fn at(offset: u64, rest: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], rest].concat()
}

/// Data that come in pieces are joined.
fn joined(said: Vec<Said>) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    for next in said {
        if let (Some(Said::Data(slot, skip, bytes)), Said::Data(other, at, more)) =
            (all.last_mut(), &next)
            && slot == other
            && *skip + bytes.len() as u64 == *at
        {
            bytes.extend(more);
        } else {
            all.push(next);
        }
    }
    all
}

#[track_caller]
fn check(
    style: HeaderStyle,
    requests: &[(u16, u64, u64)],
    make: impl Fn(&[u64]) -> Vec<u8>,
    expected: &[Said],
) {
    for piece in [1, 3, 7, 1000] {
        let (mut reader, cookies) = reader(style, requests);
        let (said, fault) = read(&mut reader, &make(&cookies), piece);
        assert_eq!((joined(said).as_slice(), fault), (expected, None), "in pieces of {piece}");
        assert!(reader.is_idle());
    }
}

#[track_caller]
fn check_fault(
    style: HeaderStyle,
    request: (u16, u64, u64),
    make: impl Fn(u64) -> Vec<u8>,
    expected: ReplyFault,
) {
    for piece in [1, 1000] {
        let (mut reader, cookies) = reader(style, &[request]);
        let (_, fault) = read(&mut reader, &make(cookies[0]), piece);
        assert_eq!(fault, Some(expected));
    }
}

#[test]
fn simple_replies_end_requests_in_any_order() {
    let requests = [(command::READ, 512, 4), (command::WRITE, 0, 512), (command::READ, 0, 1)];
    let make = |cookies: &[u64]| {
        let failed = simple(error::EIO, cookies[2]);
        [simple(0, cookies[1]), simple(0, cookies[0]), b"abcd".to_vec(), failed].concat()
    };
    let expected = [
        Said::Over(1, 0),
        Said::Data(0, 0, b"abcd".to_vec()),
        Said::Over(0, 0),
        Said::Over(2, error::EIO),
    ];
    check(HeaderStyle::Simple, &requests, make, &expected);
}

#[test]
fn structured_replies_come_in_chunks_of_data_and_holes() {
    let requests = [(command::READ, 512, 8), (command::FLUSH, 0, 0), (command::READ, 0, 4)];
    let make = |cookies: &[u64]| {
        let hole = at(512, &4_u32.to_be_bytes());
        let sentence = [&error::ENOSPC.to_be_bytes()[..], &2_u16.to_be_bytes(), b"no"].concat();
        [
            chunk_of(0, chunk::OFFSET_DATA, cookies[0], None, &at(516, b"efgh")),
            chunk_of(1, chunk::ERROR, cookies[2], None, &sentence),
            chunk_of(1, chunk::OFFSET_HOLE, cookies[0], None, &hole),
            simple(0, cookies[1]),
        ]
        .concat()
    };
    let expected = [
        Said::Data(0, 4, b"efgh".to_vec()),
        Said::Over(2, error::ENOSPC),
        Said::Zeroes(0, 0, 4),
        Said::Over(0, 0),
        Said::Over(1, 0),
    ];
    check(HeaderStyle::Structured, &requests, make, &expected);
}

#[test]
fn extents_are_told_as_far_as_they_were_asked_for() {
    let (hole, zero) = (state::HOLE, state::ZERO);
    let compact = |cookies: &[u64]| {
        let numbers = [9, 512, 0, 4096, hole | zero, 512, 0];
        let body: Vec<u8> = numbers.iter().flat_map(|it: &u32| it.to_be_bytes()).collect();
        chunk_of(1, chunk::BLOCK_STATUS, cookies[0], None, &body)
    };
    let expected =
        [Said::Extent(0, 0, 512, 0), Said::Extent(0, 512, 1536, hole | zero), Said::Over(0, 0)];
    check(HeaderStyle::Structured, &[(command::BLOCK_STATUS, 0, 2048)], compact, &expected);
    let extended = |cookies: &[u64]| {
        let numbers = [1 << 33, u64::from(zero)];
        let mut body = [9_u32.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        body.extend(numbers.iter().flat_map(|it: &u64| it.to_be_bytes()));
        chunk_of(1, chunk::BLOCK_STATUS_EXT, cookies[0], Some(64), &body)
    };
    let expected = [Said::Extent(0, 0, 1 << 33, zero), Said::Over(0, 0)];
    check(HeaderStyle::Extended, &[(command::BLOCK_STATUS, 64, 1 << 34)], extended, &expected);
}

#[test]
fn what_was_not_asked_for_ends_the_connection() {
    use HeaderStyle::{Extended, Simple, Structured};
    let read = (command::READ, 512, 8);
    let status = (command::BLOCK_STATUS, 0, 2048);
    check_fault(Simple, read, |_| vec![0; 16], ReplyFault::Magic(0));
    check_fault(Simple, read, |it| simple(0, it + 1), ReplyFault::Cookie((1 << 32) + 1));
    check_fault(Simple, read, |_| simple(0, 0), ReplyFault::Cookie(0));
    check_fault(Structured, read, |it| simple(0, it), ReplyFault::Kind(command::READ));
    let data = |offset, count: usize| {
        move |it| chunk_of(1, chunk::OFFSET_DATA, it, None, &at(offset, &vec![1; count]))
    };
    check_fault(Structured, read, data(511, 8), ReplyFault::Range { offset: 511, count: 8 });
    check_fault(Structured, read, data(512, 9), ReplyFault::Range { offset: 512, count: 9 });
    check_fault(
        Structured,
        read,
        data(u64::MAX, 8),
        ReplyFault::Range { offset: u64::MAX, count: 8 },
    );
    check_fault(Structured, read, data(512, 7), ReplyFault::Partial { covered: 7, count: 8 });
    let none = ReplyFault::Length { kind: chunk::OFFSET_DATA, count: 8 };
    check_fault(Structured, read, data(512, 0), none);
    let long = |it| {
        let mut bytes = chunk_of(1, chunk::ERROR, it, None, &[]);
        bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        bytes
    };
    let fault = ReplyFault::Length { kind: chunk::ERROR, count: u32::MAX.into() };
    check_fault(Structured, read, long, fault);
    let good = |it| chunk_of(1, chunk::ERROR, it, None, &[0; 6]);
    check_fault(Structured, read, good, ReplyFault::NoError);
    let context = |it| {
        let body: Vec<u8> = [8_u32, 512, 0].iter().flat_map(|it| it.to_be_bytes()).collect();
        chunk_of(1, chunk::BLOCK_STATUS, it, None, &body)
    };
    check_fault(Structured, status, context, ReplyFault::Context(8));
    check_fault(Structured, read, context, ReplyFault::Kind(chunk::BLOCK_STATUS));
    let done = |it| chunk_of(1, chunk::NONE, it, None, &[]);
    check_fault(Structured, status, done, ReplyFault::Partial { covered: 0, count: 2048 });
    check_fault(Structured, read, |it| chunk_of(1, 77, it, None, &[]), ReplyFault::Kind(77));
    let elsewhere = |it| chunk_of(1, chunk::NONE, it, Some(513), &[]);
    check_fault(Extended, read, elsewhere, ReplyFault::Range { offset: 513, count: 8 });
    check_fault(Extended, read, |it| simple(0, it), ReplyFault::Magic(reply_magic::SIMPLE));
}

#[test]
fn a_reply_to_an_earlier_request_of_the_slot_is_found_out() {
    let request = (command::FLUSH, 0, 0);
    let (mut reader, cookies) = reader(HeaderStyle::Simple, &[request]);
    let bytes = simple(0, cookies[0]);
    assert_eq!(read(&mut reader, &bytes, 100).1, None);
    let request = WireRequest { command: command::FLUSH, flags: 0, offset: 0, count: 0 };
    assert_ne!(reader.expect(0, &request), cookies[0]);
    assert_eq!(read(&mut reader, &bytes, 100).1, Some(ReplyFault::Cookie(cookies[0])));
}
