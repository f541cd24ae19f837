//! What requests are answered with, of every style of headers.

use block::{ByteCount, DiskSize};
use kernel_io::ReactorChoice;
use nbd::wire::{command, command_flag, error};
use nbd::{ConnectionEnd, HeaderStyle, MetaContext, MetaContexts, ProtocolFault};
use testkit::deadline::poll_until;

use crate::client::{Answer, Ask, Client};
use crate::server::{Server, on_both};

const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

const DISK_BYTES: u64 = 4 << 20;

fn pattern(count: usize, seed: u8) -> Vec<u8> {
    (0_u8..251).cycle().skip(seed.into()).take(count).collect()
}

#[test]
fn what_was_written_is_read_wherever_it_begins() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, DISK_BYTES);
        for style in STYLES {
            let (mut client, placed) = server.connect(style);
            let data = pattern(70_000 / 512 * 512, 3);
            client.write(1024, &data, 0);
            assert_eq!(client.answer().error, 0);
            for (skip, count) in [(0, data.len()), (1, 1), (511, 2), (4096, 9000), (512, 512)] {
                client.read(1024 + skip as u64, count as u64);
                let answer = client.answer();
                assert!(answer.data == data[skip..skip + count], "{style:?}: {count} at {skip}");
            }
            // The end of the disk, without its last byte.
            client.read(DISK_BYTES - 10, 9);
            assert_eq!(client.answer().data, [0; 9]);
            client.read(100, 0);
            let answer = client.answer();
            assert_eq!((answer.error, answer.data.len()), (0, 0));
            placed.stop();
        }
    });
}

#[test]
fn zeroes_are_read_as_holes_where_headers_can_say_so() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, DISK_BYTES);
        for style in STYLES {
            let (mut client, placed) = server.connect(style);
            client.write(8192, &pattern(4096, 1), 0);
            assert_eq!(client.answer().error, 0);
            for (offset, count, is_zero) in
                [(0, 8192, true), (4097, 3, true), (4096, 4097, false), (8193, 9000, false)]
            {
                client.read(offset, count);
                let answer = client.answer();
                assert_eq!((answer.error, answer.data.len() as u64), (0, count));
                assert_eq!(answer.data.iter().all(|byte| *byte == 0), is_zero, "{offset}");
                assert_eq!(answer.is_hole, is_zero && style != HeaderStyle::Simple, "{offset}");
            }
            placed.stop();
        }
    });
}

/// Data that come in one part, or in several.
#[test]
fn large_requests_are_carried_out_whatever_comes_behind_them() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, DISK_BYTES);
        let (mut client, placed) = server.connect(HeaderStyle::Extended);
        let data = pattern(3 << 20, 9);
        for round in 0..3 {
            let mut writer = client.socket.try_clone().unwrap();
            let write = Ask {
                command: command::WRITE,
                flags: command_flag::PAYLOAD_LEN,
                offset: 512,
                length: data.len() as u64,
            };
            let (_, mut bytes) = client.bytes(write, &data);
            let read = Ask { command: command::READ, flags: 0, offset: 0, length: 511 };
            bytes.extend(client.bytes(read, &[]).1);
            let sender = std::thread::spawn(move || {
                use std::io::Write;
                for part in bytes.chunks(if round == 0 { usize::MAX } else { 100_001 * round }) {
                    writer.write_all(part).unwrap();
                }
            });
            for _ in 0..2 {
                assert_eq!(client.answer().error, 0);
            }
            sender.join().unwrap();
            client.read(512, data.len() as u64);
            assert!(client.answer().data == data);
        }
        placed.stop();
    });
}

fn change(client: &mut Client, command: u16, flags: u16, offset: u64, length: u64) -> u32 {
    client.ask(Ask { command, flags, offset, length }, &[]).error
}

#[test]
fn zeroes_discards_caches_and_flushes() {
    on_both(|reactors| {
        // More than one step.
        let server = Server::of_file(reactors, 40 << 20);
        for style in STYLES {
            let (mut client, placed) = server.connect(style);
            let all = 40 << 20;
            let data = pattern(8192, 1);
            for at in [0, (32 << 20) - 4096] {
                client.write(at, &data, command_flag::FUA);
                assert_eq!(client.answer().error, 0);
            }
            assert_eq!(change(&mut client, command::CACHE, 0, 5, all - 5), 0);
            assert_eq!(
                change(&mut client, command::WRITE_ZEROES, command_flag::FUA, 512, all - 512),
                0
            );
            client.read(0, 1024);
            assert_eq!(client.answer().data, [&data[..512], &[0; 512]].concat());
            client.read((32 << 20) - 4096, 8192);
            assert!(client.answer().data.iter().all(|byte| *byte == 0));
            assert_eq!(
                change(&mut client, command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 4096),
                0
            );
            for flags in [0, command_flag::NO_HOLE, command_flag::FUA] {
                let flags = flags | command_flag::FAST_ZERO;
                assert_eq!(change(&mut client, command::WRITE_ZEROES, flags, 0, all), 0);
            }
            assert_eq!(change(&mut client, command::TRIM, command_flag::FUA, 0, all), 0);
            assert_eq!(change(&mut client, command::TRIM, 0, 0, 0), 0);
            assert_eq!(change(&mut client, command::FLUSH, 0, 0, 0), 0);
            placed.stop();
        }
    });
}

/// What a client is told of what it may not do; the connection goes on.
#[test]
fn refusals_are_those_of_the_specification() {
    let mut server = Server::of_file(ReactorChoice::Any, DISK_BYTES);
    for style in STYLES {
        let (mut client, placed) = server.connect(style);
        let mut check = |command, flags, offset, length, expected: u32| {
            let error = change(&mut client, command, flags, offset, length);
            assert_eq!(error, expected, "{style:?}: {command} {flags:#x} {offset} {length}");
        };
        check(command::READ, 0, DISK_BYTES, 1, error::EINVAL);
        check(command::READ, 0, u64::MAX, 2, error::EINVAL);
        check(command::CACHE, 0, DISK_BYTES - 1, 2, error::EINVAL);
        check(command::TRIM, 0, DISK_BYTES, 512, error::EINVAL);
        check(command::WRITE_ZEROES, 0, DISK_BYTES, 512, error::ENOSPC);
        check(command::WRITE_ZEROES, 0, 1, 512, error::EINVAL);
        check(command::WRITE_ZEROES, 0, 0, 513, error::EINVAL);
        check(command::TRIM, 0, 100, 512, error::EINVAL);
        check(command::TRIM, command_flag::FAST_ZERO, 0, 512, error::EINVAL);
        check(command::FLUSH, command_flag::DF, 0, 0, error::EINVAL);
        check(command::READ, command_flag::NO_HOLE, 0, 512, error::EINVAL);
        check(command::BLOCK_STATUS, 0, 0, 512, error::EINVAL);
        check(8, 0, 0, 0, error::EINVAL);
        check(77, 0, 0, 512, error::EINVAL);
        let large = if style == HeaderStyle::Simple { error::EINVAL } else { error::EOVERFLOW };
        check(command::READ, 0, 0, (32 << 20) + 1, large);
        // Its data are not taken for requests.
        for (offset, length, expected) in
            [(DISK_BYTES, 512, error::ENOSPC), (1, 512, error::EINVAL), (0, 100_001, error::EINVAL)]
        {
            client.write(offset, &vec![0x25; length], 0);
            assert_eq!(client.answer().error, expected);
        }
        client.read(0, 512);
        assert_eq!(client.answer().data, [0; 512]);
        // Without the flag of extended headers, as QEMU's client writes.
        let ask = Ask { command: command::WRITE, flags: 0, offset: 512, length: 512 };
        assert_eq!(client.ask(ask, &[3; 512]).error, 0);
        placed.stop();
    }
    server.access = block::Access::ReadOnly;
    for style in STYLES {
        let (mut client, placed) = server.connect(style);
        client.write(0, &[1; 4096], 0);
        assert_eq!(client.answer().error, error::EPERM);
        for command in [command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(change(&mut client, command, 0, 0, 512), error::EPERM);
        }
        assert_eq!(change(&mut client, command::FLUSH, 0, 0, 0), 0);
        placed.stop();
    }
}

#[test]
fn a_status_tells_holes_and_data_in_each_context() {
    on_both(|reactors| {
        let mut server = Server::of_file(reactors, DISK_BYTES);
        server.contexts = MetaContexts::default().with(MetaContext::BaseAllocation);
        let both = server.contexts.with(MetaContext::AllocationDepth);
        for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
            let (mut client, placed) = server.connect(style);
            assert_eq!(change(&mut client, command::TRIM, 0, 0, DISK_BYTES), 0);
            client.write(1 << 20, &pattern(1 << 20, 2), 0);
            assert_eq!(client.answer().error, 0);
            placed.stop();
            let (hole, data) = (3, 0);
            let status = |client: &mut Client, flags, offset, length| -> Answer {
                let command = command::BLOCK_STATUS;
                client.ask(Ask { command, flags, offset, length }, &[])
            };
            let (mut client, placed) = server.connect(style);
            let answer = status(&mut client, 0, 0, DISK_BYTES);
            let whole = vec![(1 << 20, hole), (1 << 20, data), (2 << 20, hole)];
            assert_eq!(answer.status, [(1, whole)], "{style:?}");
            // Not at the beginning of a sector.
            let answer = status(&mut client, 0, (1 << 20) - 100, 200);
            assert_eq!(answer.status, [(1, vec![(100, hole), (100, data)])]);
            let answer = status(&mut client, command_flag::REQ_ONE, 3, 2 << 20);
            assert_eq!(answer.status, [(1, vec![((1 << 20) - 3, hole)])]);
            assert_eq!(status(&mut client, 0, 0, 0).error, error::EINVAL);
            assert_eq!(status(&mut client, 0, 1, DISK_BYTES).error, error::EINVAL);
            placed.stop();
            let contexts = std::mem::replace(&mut server.contexts, both);
            let (mut client, placed) = server.connect(style);
            let answer = status(&mut client, 0, 1 << 20, 4096);
            assert_eq!(answer.status, [(1, vec![(4096, 0)]), (2, vec![(4096, 1)])]);
            placed.stop();
            server.contexts = contexts;
        }
    });
}

#[test]
fn a_status_may_name_the_contexts_it_wants() {
    let mut server = Server::of_null(ReactorChoice::Any, DISK_BYTES);
    server.contexts = MetaContexts::default().with(MetaContext::BaseAllocation);
    let (base, depth) = (MetaContext::BaseAllocation.id(), MetaContext::AllocationDepth.id());
    let mut ask = |contexts: MetaContexts, length: u64, ids: &[u32]| {
        server.contexts = contexts;
        let (mut client, placed) = server.connect(HeaderStyle::Extended);
        let mut payload = length.to_be_bytes().to_vec();
        ids.iter().for_each(|id| payload.extend(id.to_be_bytes()));
        let ask = Ask {
            command: command::BLOCK_STATUS,
            flags: command_flag::PAYLOAD_LEN,
            offset: 512,
            length: payload.len() as u64,
        };
        let answer = client.ask(ask, &payload);
        // It goes on.
        client.read(0, 512);
        assert_eq!(client.answer().data.len(), 512);
        placed.stop();
        let ids: Vec<_> = answer.status.iter().map(|(id, _)| *id).collect();
        (answer.error, ids)
    };
    let one = MetaContexts::default().with(MetaContext::BaseAllocation);
    let both = one.with(MetaContext::AllocationDepth);
    assert_eq!(ask(both, 4096, &[depth]), (0, vec![depth]));
    assert_eq!(ask(both, 4096, &[depth, base]), (0, vec![base, depth]));
    for (contexts, length, ids) in [
        (both, 4096, &[depth, depth][..]),
        (both, 4096, &[77]),
        (both, 4096, &[]),
        (both, 0, &[base]),
        (both, DISK_BYTES, &[base]),
        (one, 4096, &[depth]),
    ] {
        assert_eq!(ask(contexts, length, ids), (error::EINVAL, vec![]), "{length} {ids:?}");
    }
}

#[test]
fn who_breaks_the_protocol_has_its_answers_and_is_not_served() {
    let server = Server::of_null(ReactorChoice::Any, DISK_BYTES);
    let mut told = 0;
    let mut check = |style, rubbish: &dyn Fn(&mut Client), fault: ProtocolFault| {
        let (mut client, placed) = server.connect(style);
        client.read(0, 4096);
        rubbish(&mut client);
        assert_eq!(client.answer().data.len(), 4096);
        told += 1;
        poll_until("the end", std::time::Duration::from_secs(60), || {
            Ok((server.ends.get().len() == told).then_some(()))
        })
        .unwrap();
        assert_eq!(server.ends.get().pop(), Some(ConnectionEnd::ProtocolBroken(fault)));
        placed.stop();
    };
    let long = (32 << 20) + 1;
    for style in STYLES {
        let rubbish = |client: &mut Client| {
            use std::io::Write;
            client.socket.write_all(&[0xee; 4000]).unwrap();
        };
        check(style, &rubbish, ProtocolFault::RequestMagic(0xeeee_eeee));
    }
    let write = |flags, length| {
        move |client: &mut Client| {
            client.send(Ask { command: command::WRITE, flags, offset: 0, length }, &[]);
        }
    };
    let fault = ProtocolFault::Payload { command: command::WRITE, bytes: long };
    check(HeaderStyle::Simple, &write(0, long), fault.clone());
    check(HeaderStyle::Extended, &write(command_flag::PAYLOAD_LEN, long), fault.clone());
    check(HeaderStyle::Extended, &write(0, long), fault);
}

#[test]
fn a_disk_that_became_smaller_has_less_for_everybody() {
    let server = Server::of_null(ReactorChoice::Any, DISK_BYTES);
    let (mut client, placed) = server.connect(HeaderStyle::Structured);
    let read = |client: &mut Client, offset| change(client, command::READ, 0, offset, 512);
    assert_eq!(read(&mut client, DISK_BYTES - 512), 0);
    server.size.set(DiskSize(ByteCount(DISK_BYTES / 2 + 100)));
    assert_eq!(read(&mut client, DISK_BYTES - 512), error::EINVAL);
    assert_eq!(read(&mut client, DISK_BYTES / 2 - 512), 0);
    assert_eq!(read(&mut client, DISK_BYTES / 2 - 412), error::EINVAL);
    // What it was not told of it may not use either.
    server.size.set(DiskSize(ByteCount(DISK_BYTES * 2)));
    assert_eq!(read(&mut client, DISK_BYTES), error::EINVAL);
    placed.stop();
}

#[test]
fn a_server_that_ends_says_so() {
    let server = Server::of_null(ReactorChoice::Any, DISK_BYTES);
    for style in STYLES {
        let (mut client, placed) = server.connect(style);
        assert_eq!(change(&mut client, command::READ, 0, 0, 512), 0);
        placed.visit(|connection, _| connection.refuse_new()).unwrap();
        client.write(0, &[1; 8192], 0);
        assert_eq!(client.answer().error, error::ESHUTDOWN);
        assert_eq!(change(&mut client, command::FLUSH, 0, 0, 0), error::ESHUTDOWN);
        let connection = placed.stop().into_front();
        assert!(connection.is_settled());
    }
}
