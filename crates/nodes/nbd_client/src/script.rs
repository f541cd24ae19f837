//! A conversation with a server whose every word is known beforehand: what a fuzz target gives it.
//!
//! Where it stands: beside connections, of the same parts; no socket, no time.
//!
//! Invariants: asserted here, since nobody else sees the parts: what a reply says is inside a request that is under way, and
//! each request ends once.

use std::io::{self, Read, Write};

use nbd_wire::command;

use crate::handshake::Greeting;
use crate::replies::{ReplyEvent, ReplyReader};
use crate::request::WireRequest;
use crate::terms::Terms;

/// What is asked after the handshake, one request in each slot.
const REQUESTS: [WireRequest; 5] = [
    WireRequest { command: command::READ, flags: 0, offset: 0, count: 64 },
    WireRequest { command: command::WRITE, flags: 0, offset: 512, count: 64 },
    WireRequest { command: command::FLUSH, flags: 0, offset: 0, count: 0 },
    WireRequest { command: command::BLOCK_STATUS, flags: 0, offset: 0, count: 4096 },
    WireRequest { command: command::READ, flags: 0, offset: 4096, count: 512 },
];

/// A server that says these words, whatever it is asked.
struct ScriptedServer<'a>(&'a [u8]);

impl Read for ScriptedServer<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for ScriptedServer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shakes hands with a server that says this, asks it for some things, and takes its replies in pieces of so many bytes; what
/// came of it. It is the same whatever the pieces are.
///
/// # Panics
/// If a reply is taken for more than it can be.
pub fn converse(script: &[u8], piece: usize) -> String {
    let mut server = ScriptedServer(script);
    let terms = Greeting::take(&mut server).and_then(|it| it.choose(&mut server, "disk"));
    match terms {
        Ok(terms) => format!("{terms:?}, {}", take_replies(&terms, server.0, piece.max(1))),
        Err(error) => error.to_string(),
    }
}

fn take_replies(terms: &Terms, bytes: &[u8], piece: usize) -> String {
    let mut reader = ReplyReader::new(terms.style, terms.allocation);
    for (slot, request) in (0..).zip(&REQUESTS) {
        reader.expect(slot, request);
    }
    let (mut is_over, mut read) = ([false; REQUESTS.len()], 0_u64);
    let (mut start, mut end) = (0, 0);
    let check = |is_over: &[bool], slot: u32, skip: u64, count: u64| {
        let index = slot as usize;
        assert!(!is_over[index], "slot {slot} is over");
        assert!(skip + count <= REQUESTS[index].count, "{count} bytes at {skip} of slot {slot}");
    };
    loop {
        match reader.next(&bytes[start..end]) {
            Err(fault) => return format!("{is_over:?}, {read}, {fault}"),
            Ok((0, None)) if end == bytes.len() => return format!("{is_over:?}, {read}"),
            Ok((0, None)) => end = bytes.len().min(end + piece),
            Ok((taken, event)) => {
                start += taken;
                match event {
                    None => {}
                    Some(ReplyEvent::Data { slot, skip, bytes }) => {
                        check(&is_over, slot, skip, bytes.len() as u64);
                        read += bytes.len() as u64;
                    }
                    Some(ReplyEvent::Zeroes { slot, skip, count })
                    | Some(ReplyEvent::Extent { slot, skip, count, .. }) => {
                        check(&is_over, slot, skip, count);
                    }
                    Some(ReplyEvent::Over { slot, .. }) => {
                        check(&is_over, slot, 0, 0);
                        is_over[slot as usize] = true;
                    }
                }
            }
        }
    }
}
