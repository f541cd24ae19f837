//! Clients that take what all share: addresses in which memory can be mapped, and descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::process::Bench;
use testkit::rawring::{Ack, BlockRequest, Form, RawDevice, Region, flag, kind, request};

use super::{Target, attacks, shape};
use crate::support::{Disk, ringloom, serve_beside, stop, with};

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

attacks! {
    both {
    }
    ringloom {
        addresses_taken,
        table_replaced_by_one_of_its_size,
    }
}
