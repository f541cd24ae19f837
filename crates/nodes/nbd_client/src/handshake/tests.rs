//! Handshakes with servers that send what they like, whatever they are asked.

use super::*;
use nbd_wire::{OPTION_REPLY_MAGIC, transmission};

/// A server that has written its answers beforehand.
struct Script<'a> {
    answers: &'a [u8],
    asked: Vec<u8>,
}

impl Read for Script<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.answers.read(room)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.asked.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn greeting(flags: u16) -> Vec<u8> {
    [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn export(size: u64, flags: u16) -> Vec<u8> {
    [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn blocks(minimum: u32, preferred: u32, maximum: u32) -> Vec<u8> {
    let mut bytes = info::BLOCK_SIZE.to_be_bytes().to_vec();
    [minimum, preferred, maximum].iter().for_each(|it| bytes.extend(it.to_be_bytes()));
    bytes
}

fn shake(answers: &[Vec<u8>]) -> Result<Terms, HandshakeError> {
    let answers = answers.concat();
    let mut server = Script { answers: &answers, asked: Vec::new() };
    let greeting = Greeting::take(&mut server)?;
    let terms = greeting.choose(&mut server, "disk")?;
    assert!(server.answers.is_empty(), "bytes of the transmission were read");
    Ok(terms)
}

#[track_caller]
fn check_refused(answers: &[Vec<u8>], part: &str) {
    let refused = shake(answers).unwrap_err();
    let mut text = refused.to_string();
    if let HandshakeError::Connection(source) = &refused {
        text = format!("{text}: {source}");
    }
    assert!(text.contains(part), "{text}");
}

const FIXED: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;

fn no(option: u32) -> Vec<u8> {
    answer(option, reply::ERR_UNSUP, b"never heard of it")
}

fn yes(option: u32) -> Vec<u8> {
    answer(option, reply::ACK, &[])
}

#[test]
fn the_newest_headers_are_taken_that_the_server_has() {
    let flags = transmission::HAS_FLAGS;
    let context = [&5_u32.to_be_bytes()[..], ALLOCATION.as_bytes()].concat();
    let go = [
        answer(option::GO, reply::INFO, &export(1 << 20, flags)),
        answer(option::GO, reply::INFO, &blocks(1, 4096, 1 << 25)),
        yes(option::GO),
    ]
    .concat();
    let extended = [
        greeting(FIXED),
        yes(option::EXTENDED_HEADERS),
        answer(option::SET_META_CONTEXT, reply::META_CONTEXT, &context),
        yes(option::SET_META_CONTEXT),
        go.clone(),
    ];
    let terms = shake(&extended).unwrap();
    let found = (terms.style, terms.allocation, terms.minimum, terms.size);
    assert_eq!(found, (HeaderStyle::Extended, Some(5), 1, 1 << 20));
    let structured = [
        greeting(FIXED),
        no(option::EXTENDED_HEADERS),
        yes(option::STRUCTURED_REPLY),
        no(option::SET_META_CONTEXT),
        go.clone(),
    ];
    let terms = shake(&structured).unwrap();
    assert_eq!((terms.style, terms.allocation), (HeaderStyle::Structured, None));
    let simple = [greeting(FIXED), no(option::EXTENDED_HEADERS), no(option::STRUCTURED_REPLY), go];
    assert_eq!(shake(&simple).unwrap().style, HeaderStyle::Simple);
}

#[test]
fn servers_without_go_are_asked_by_name() {
    let told = [&(1_u64 << 20).to_be_bytes()[..], &1_u16.to_be_bytes()].concat();
    let fixed = [
        greeting(FIXED),
        no(option::EXTENDED_HEADERS),
        no(option::STRUCTURED_REPLY),
        no(option::GO),
        told.clone(),
    ];
    assert_eq!(shake(&fixed).unwrap().minimum, 512);
    let oldest = [greeting(0), told, vec![0; 124]];
    assert_eq!(shake(&oldest).unwrap().size, 1 << 20);
}

#[test]
fn a_server_that_refuses_or_breaks_the_rules_is_left_with_a_sentence() {
    let begun = [greeting(FIXED), no(option::EXTENDED_HEADERS), no(option::STRUCTURED_REPLY)];
    let after = |answers: &[Vec<u8>]| [&begun[..], answers].concat();
    check_refused(&[vec![7; 18]], "Bad initial magic received: 0x0707070707070707");
    let old = [INIT_MAGIC.to_be_bytes(), OLD_MAGIC.to_be_bytes()].concat();
    check_refused(&[old], "the old handshake");
    check_refused(&[greeting(FIXED)], "cut off");
    let unknown = answer(option::GO, reply::ERR_UNKNOWN, b"what\x1b[31m disk?");
    check_refused(&after(&[unknown]), "'disk'; it says: what[31m disk?");
    let policy = answer(option::GO, reply::ERR_POLICY, b"");
    check_refused(&after(&[policy]), "refuses option 7 with error 0x80000002");
    check_refused(&after(&[answer(option::GO, reply::ERR_TLS_REQD, b"")]), "requires TLS");
    check_refused(&after(&[yes(option::GO)]), "says nothing of the export");
    check_refused(&after(&[yes(option::LIST)]), "an option that was not sent");
    check_refused(&after(&[answer(option::GO, reply::SERVER, b"")]), "no answer to it");
    let mut endless = answer(option::GO, reply::INFO, &export(0, 1));
    check_refused(&after(&vec![endless.clone(); 70]), "more than 64 times");
    endless[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    check_refused(&after(&[endless]), "4294967295 bytes");
    let short = answer(option::GO, reply::INFO, &[0, 0, 1]);
    check_refused(&after(&[short]), "cut off");
    let context = [&5_u32.to_be_bytes()[..], b"qemu:dirty-bitmap:x"].concat();
    let foreign = [
        greeting(FIXED),
        yes(option::EXTENDED_HEADERS),
        answer(option::SET_META_CONTEXT, reply::META_CONTEXT, &context),
    ];
    check_refused(&foreign, "contexts that nobody asked for");
}
