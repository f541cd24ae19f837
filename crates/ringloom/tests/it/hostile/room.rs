//! Clients that take what all share: addresses in which memory can be mapped, and descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::deadline::poll_until;
use testkit::holdings::{Holdings, anonymous_kib};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{
    Ack, BlockRequest, Form, Piece, RawDevice, RawShape, Region, flag, kind, request,
};
use testkit::report::note;

use super::{Bystander, Target, attacks, check_beside, shape};
use crate::support::{Disk, Iothreads, ringloom, serve, serve_beside, stop, with};

/// A sparse file costs its owner nothing.
const SPARSE: u64 = 1 << 40;

fn sparse() -> Result<OwnedFd> {
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC).context("a memfd")?;
    ftruncate(&file, SPARSE).context("make it large")?;
    Ok(file)
}

fn add(device: &RawDevice, number: u64, size: u64, file: BorrowedFd<'_>) -> Result<Ack> {
    // Above what the device itself has.
    let address = (number + 1) << 40;
    let region =
        Region { guest_address: address, size, user_address: address | 1 << 62, file_offset: 0 };
    device.front_end.tell(request::ADD_MEM_REG, &region.single(), &[file])
}

/// Maps a terabyte again and again; the client, and how often that went.
fn map(socket: &Path, most: u64) -> Result<(RawDevice, u64)> {
    let device = RawDevice::negotiated(socket, shape())?;
    let file = sparse()?;
    for number in 0..most {
        if add(&device, number, SPARSE, file.as_fd())? != Ack::Done {
            return Ok((device, number));
        }
    }
    Ok((device, most))
}

fn reads(device: &mut RawDevice) -> Result<()> {
    let data = vec![device.data(0, 4096, flag::WRITE)];
    let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
    let outcome = device.request(0, &read)?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

/// Two clients take as many addresses as they get; a third one still maps its memory.
fn addresses_taken(target: &Target<'_>) -> Result<()> {
    let (greedy, mapped) = map(target.socket, 200)?;
    greedy.front_end.wait_for_end()?;
    // 16 TiB for each of four exports.
    ensure!((1..=16).contains(&mapped), "one session has mapped {mapped} TiB");
    // What it had is free again for the next session.
    let (_first, first) = map(target.socket, mapped)?;
    let (_second, second) = map(target.wide, mapped)?;
    ensure!((first, second) == (mapped, mapped), "{first} and {second} TiB were mapped");
    reads(&mut RawDevice::connect(target.read_only, shape())?)?;
    target.others_go_on()
}

/// A table takes the place of the one before, which does not count any more.
fn table_replaced_by_one_of_its_size(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::negotiated(target.socket, shape())?;
    let file = sparse()?;
    let region = |number: u64| Region {
        guest_address: number << 40,
        size: SPARSE,
        user_address: number << 40,
        file_offset: 0,
    };
    let regions: Vec<Region> = (0..7).map(region).collect();
    let files: Vec<BorrowedFd<'_>> = regions.iter().map(|_| file.as_fd()).collect();
    for round in 0..5 {
        let ack =
            device.front_end.tell(request::SET_MEM_TABLE, &Region::table(&regions), &files)?;
        ensure!(ack == Ack::Done, "round {round}: {ack:?}");
    }
    Ok(())
}

/// The operator may say how much memory a guest has.
#[test]
fn more_memory_than_was_allowed_is_refused() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "d", 2);
        disk.create_sparse(1 << 20)?;
        let more = ["--max-guest-memory".to_owned(), "8M".to_owned()];
        let server = serve_beside(program, std::slice::from_ref(&disk), &more)?;
        let mut device = RawDevice::connect(&disk.socket(), shape())?;
        let file = sparse()?;
        // The device has 6 MiB.
        ensure!(add(&device, 0, 2 << 20, file.as_fd())? == Ack::Done, "8 MiB are refused");
        reads(&mut device)?;
        ensure!(add(&device, 1, 4096, file.as_fd())? != Ack::Done, "more is taken");
        device.front_end.wait_for_end()?;
        let log = stop(server, &[])?;
        let said = "a session may map 8388608 bytes in all (see --max-guest-memory)";
        ensure!(log.contains(said), "not said: {log}");
        Ok(())
    });
}

/// Gives descriptors until that is refused or `most` are given; how many were taken.
fn give(device: &RawDevice, most: u32) -> Result<u32> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
    for given in 0..most {
        let message = [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR];
        let payload = u64::from(given / 3).to_le_bytes();
        let message = message[given as usize % 3];
        if device.front_end.tell(message, &payload, &[bell.as_fd()])? != Ack::Done {
            return Ok(given);
        }
    }
    Ok(most)
}

/// The same with regions of memory.
fn give_regions(device: &RawDevice, most: u32) -> Result<u32> {
    let file = sparse()?;
    for given in 0..most {
        if add(device, given.into(), 4096, file.as_fd())? != Ack::Done {
            return Ok(given);
        }
    }
    Ok(most)
}

/// A client takes all the descriptors that it gets, of so many that the daemon may open: who has more than its share is ended,
/// and the others do not notice, nor those who come and go.
fn descriptors_taken(limit: u32, comers: &[&str]) {
    let limit = format!("--nofile={limit}:{limit}");
    let path = env!("CARGO_BIN_EXE_ringloom");
    with(&Program::named("ringloom", "prlimit", &[&limit, path, "serve"]), |program| {
        let bench = Bench::new()?;
        let disk = |id, queues| Disk { iothreads: Iothreads::One, ..Disk::new(&bench, id, queues) };
        let mut disks = vec![disk("good", 2), disk("bad", 64)];
        disks.extend(comers.iter().map(|id| disk(*id, 2)));
        let content = disks[0].create(8 << 20, 0x31)?;
        disks[1..].iter().try_for_each(|disk| disk.create_sparse(1 << 20))?;
        let mut server = serve(program, &disks)?;
        let by = Bystander::start(&disks[0].socket(), content)?;
        by.wait_for_progress(&mut server, "before the attack")?;
        for attack in [give, give_regions] {
            let bad = || RawDevice::negotiated(&disks[1].socket(), shape());
            let greedy = bad()?;
            let most = attack(&greedy, 150)?;
            greedy.front_end.wait_for_end()?;
            // As many as just go, for as long as others come and go.
            let greedy = bad()?;
            ensure!(attack(&greedy, most)? == most, "not {most} again: {}", server.log());
            let meanwhile = |server: &mut Server| by.wait_for_progress(server, "during the attack");
            half_a_message(&greedy, || meanwhile(&mut server))?;
            let one = RawShape { queues: 1, ..shape() };
            for disk in &disks[2..] {
                for _ in 0..3 {
                    reads(&mut RawDevice::connect(&disk.socket(), one)?)?;
                }
                let comer = RawDevice::negotiated(&disk.socket(), one)?;
                half_a_message(&comer, || meanwhile(&mut server))?;
            }
        }
        let model = by.finish()?;
        let log = stop(server, &[])?;
        let said = "would have this process hold";
        ensure!(
            log.matches(said).count() == 2 && !log.contains("session ended: connection"),
            "{log}"
        );
        model.check_image(&disks[0].image())
    });
}

#[test]
fn descriptors_taken_of_68() {
    descriptors_taken(68, &[]);
}

#[test]
fn descriptors_taken_while_others_come_and_go() {
    descriptors_taken(85, &["other"]);
}

/// Half of a message is waited for without a descriptor for that.
fn half_a_message(device: &RawDevice, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let question = [request::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    device.front_end.send_bytes(&question[..5], &[])?;
    meanwhile()?;
    device.front_end.send_bytes(&question[5..], &[])?;
    device.front_end.receive(request::GET_FEATURES)?.context("no answer")?;
    Ok(())
}

/// The memory for a gigabyte of zeroes is cut off before they come: the daemon does not pay for what is written in vain.
#[test]
fn lost_memory_costs_nothing() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("zeroes.sock");
        let more = [
            "--blockdev".to_owned(),
            "driver=null-co,node-name=zeroes,size=1073741824,read-zeroes=on".to_owned(),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=zeroes,node-name=zeroes,addr.type=unix,addr.path={},\
                 num-queues=2,iothread.0=t0,iothread.1=t1",
                socket.display()
            ),
        ];
        check_beside(program, &more, |target| {
            let mut device = RawDevice::connect(&socket, shape())?;
            let file = sparse()?;
            ensure!(add(&device, 0, 1 << 30, file.as_fd())? == Ack::Done, "a gigabyte more");
            ftruncate(&file, 0).context("take it away")?;
            let whole = Holdings::of(target.pid)?;
            let before = anonymous_kib(target.pid)?;
            let (header, status) = device.frame(kind::IN, 0);
            let quarter = |number: u64| Piece {
                address: (1 << 40) + (number << 28),
                length: 1 << 28,
                flags: flag::WRITE,
            };
            let pieces = [header, quarter(0), quarter(1), quarter(2), quarter(3), status];
            device.ring(0).set_chain(0, &pieces);
            device.offer(0, 0)?;
            // The loss is seen when the ring is looked at again, and the session is over when the request is.
            let mut most = 0;
            poll_until("the end of the session", Duration::from_secs(30), || {
                most = most.max(anonymous_kib(target.pid)?);
                let left = Holdings::of(target.pid)?.guest_mappings;
                Ok((left + 2 <= whole.guest_mappings).then_some(()))
            })?;
            let grown = most.saturating_sub(before);
            note(&format!("the daemon has grown by {grown} KiB"));
            ensure!(grown < 64 << 10, "the daemon has grown by {grown} KiB");
            target.others_go_on()
        })
    });
}

attacks! {
    both {
    }
    ringloom {
        addresses_taken,
        table_replaced_by_one_of_its_size,
    }
}
