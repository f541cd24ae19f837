//! Devices and files that grow and shrink while they are served.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::process::Bench;
use testkit::rawring::{BlockRequest, Form, Outcome, RawDevice, RawShape, flag, kind};

use super::{Bed, RIGS, on};
use crate::support::{Disk, ringloom, stop, with};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

/// How long the news may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn request(device: &mut RawDevice, kind: u32, at: usize, flags: u16) -> Result<Outcome> {
    let (sector, data) = ((at / 512) as u64, vec![device.data(0, u32::try_from(BLOCK)?, flags)]);
    device.request(0, &BlockRequest { kind, sector, data, form: Form::Direct })
}

fn write(device: &mut RawDevice, at: usize, byte: u8) -> Result<Outcome> {
    device.put(0, &[byte; BLOCK]);
    request(device, kind::OUT, at, 0)
}

/// The block there, or how reading it failed.
fn read(device: &mut RawDevice, at: usize) -> Result<std::result::Result<Vec<u8>, Outcome>> {
    device.put(0, &[0xee; BLOCK]);
    let outcome = request(device, kind::IN, at, flag::WRITE)?;
    Ok(if outcome.is_ok() { Ok(device.get(0, BLOCK)) } else { Err(outcome) })
}

fn zero(device: &mut RawDevice, at: usize) -> Result<Outcome> {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&((at / 512) as u64).to_le_bytes());
    range[8..12].copy_from_slice(&u32::try_from(BLOCK / 512)?.to_le_bytes());
    device.put(0, &range);
    let data = vec![device.data(0, 16, 0)];
    let form = Form::Direct;
    device.request(0, &BlockRequest { kind: kind::WRITE_ZEROES, sector: 0, data, form })
}

/// The size in the configuration space.
fn capacity(device: &RawDevice) -> Result<u64> {
    let space = device.front_end.configuration(8)?;
    let sectors: [u8; 8] = space.as_slice().try_into().context("the first 8 bytes")?;
    Ok(u64::from_le_bytes(sectors) * 512)
}

/// Waits until the server says that the configuration has changed.
fn hear(channel: &mut UnixStream, bed: &Bed) -> Result<()> {
    let mut message = [0; 12];
    channel.set_read_timeout(Some(LIMIT)).context("limit reads")?;
    channel
        .read_exact(&mut message)
        .with_context(|| format!("no news, log: {}", bed.server.log()))?;
    // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, no payload.
    ensure!(message[..] == [2_u32, 1, 0].map(u32::to_le_bytes).concat(), "{message:?}");
    Ok(())
}

/// Whether nothing was said that nobody has read.
fn is_silent(channel: &mut UnixStream) -> Result<bool> {
    channel.set_nonblocking(true).context("do not wait")?;
    let said = channel.read(&mut [0; 12]);
    channel.set_nonblocking(false).context("wait again")?;
    Ok(said.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock))
}

fn shape() -> RawShape {
    RawShape { queues: 2, ..RawShape::default() }
}

#[test]
fn a_device_that_grows_and_shrinks_is_told_of_and_served_as_it_is() {
    on(&RIGS, |rig| {
        let bed = Bed::new(rig, &[1; 4 * MIB], ",discard=unmap")?;
        let mut device = RawDevice::connect(&bed.socket, shape())?;
        let mut channel = device.open_channel()?;
        ensure!(capacity(&device)? == 4 * MIB as u64, "at first");
        ensure!(write(&mut device, 4 * MIB, 2)?.is_io_error(), "a write behind the end");

        bed.device.resize(&bed.image, 8 << 20)?;
        hear(&mut channel, &bed)?;
        ensure!(capacity(&device)? == 8 * MIB as u64, "after it has grown");
        ensure!(write(&mut device, 6 * MIB, 3)?.is_ok(), "a write where it has grown");
        ensure!(read(&mut device, 6 * MIB)?.is_ok_and(|found| found == [3; BLOCK]), "a read there");
        ensure!(read(&mut device, 5 * MIB)?.is_ok_and(|found| found == [0; BLOCK]), "new room");
        ensure!(write(&mut device, 8 * MIB, 2)?.is_io_error(), "a write behind the new end");

        bed.device.resize(&bed.image, 2 << 20)?;
        hear(&mut channel, &bed)?;
        ensure!(capacity(&device)? == 2 * MIB as u64, "after it has shrunk");
        ensure!(read(&mut device, MIB)?.is_ok_and(|found| found == [1; BLOCK]), "what is left");
        for at in [2 * MIB, 6 * MIB] {
            ensure!(read(&mut device, at)?.is_err_and(|it| it.is_io_error()), "a read at {at}");
            ensure!(write(&mut device, at, 4)?.is_io_error(), "a write at {at}");
            ensure!(zero(&mut device, at)?.is_io_error(), "a zeroing at {at}");
        }

        bed.device.resize(&bed.image, 8 << 20)?;
        hear(&mut channel, &bed)?;
        // What was refused was not done later. The host's page cache may remember what was written there before.
        for (at, before) in [(2 * MIB, 1), (6 * MIB, 3)] {
            let found = read(&mut device, at)?;
            let may_remember = rig.direct == "off";
            let is_right =
                |found: Vec<u8>| found == [0; BLOCK] || may_remember && found == [before; BLOCK];
            ensure!(found.is_ok_and(is_right), "at {at}");
        }
        let log = bed.server.log();
        for said in ["has grown from 4194304 to 8388608", "has shrunk from 8388608 to 2097152"] {
            ensure!(log.contains(&format!("export e: node n {said} bytes")), "log: {log}");
        }
        stop(bed.server, &[&bed.socket]).map(drop)
    });
}

/// Whether the server has looked already or not: the kernel knows the end of the device.
#[test]
fn a_front_end_that_listens_to_nothing_is_served_as_the_device_is() {
    on(&RIGS[..1], |rig| {
        let bed = Bed::new(rig, &[1; 4 * MIB], ",discard=unmap")?;
        let mut device = RawDevice::connect(&bed.socket, shape())?;
        bed.device.resize(&bed.image, 2 << 20)?;
        for at in [2 * MIB, 3 * MIB] {
            ensure!(read(&mut device, at)?.is_err_and(|it| it.is_io_error()), "a read at {at}");
            ensure!(zero(&mut device, at)?.is_io_error(), "a zeroing at {at}");
            ensure!(write(&mut device, at, 4)?.is_io_error(), "a write at {at}");
        }
        ensure!(read(&mut device, MIB)?.is_ok_and(|found| found == [1; BLOCK]), "what is left");
        bed.device.resize(&bed.image, 8 << 20)?;
        // Asking is enough.
        ensure!(capacity(&device)? == 8 * MIB as u64, "after it has grown");
        ensure!(write(&mut device, 7 * MIB, 5)?.is_ok(), "a write where it has grown");
        ensure!(read(&mut device, 7 * MIB)?.is_ok_and(|found| found == [5; BLOCK]), "a read there");
        stop(bed.server, &[&bed.socket]).map(drop)
    });
}

#[test]
fn a_front_end_that_comes_back_is_told_unless_it_asks_first() {
    on(&RIGS[..1], |rig| {
        let bed = Bed::new(rig, &[1; 4 * MIB], "")?;
        let asks = RawDevice::negotiated(&bed.socket, shape())?;
        let mut channel = asks.open_channel()?;
        ensure!(capacity(&asks)? == 4 * MIB as u64, "at first");
        asks.share_and_start()?;
        ensure!(is_silent(&mut channel)?, "told what it knows");
        drop(asks);
        // As QEMU does after a reconnection.
        let mut returns = RawDevice::negotiated(&bed.socket, shape())?;
        let mut channel = returns.open_channel()?;
        returns.share_and_start()?;
        hear(&mut channel, &bed)?;
        ensure!(is_silent(&mut channel)?, "told twice, for two queues");
        ensure!(read(&mut returns, MIB)?.is_ok(), "a read");
        // As if other devices of the host had changed: the size is looked at, and is no news.
        let name = bed.device.path().file_name().context("a name")?;
        let event = Path::new("/sys/class/block").join(name).join("uevent");
        (0..3).try_for_each(|_| std::fs::write(&event, "change")).context("send an event")?;
        bed.device.resize(&bed.image, 8 * MIB as u64)?;
        hear(&mut channel, &bed)?;
        ensure!(is_silent(&mut channel)?, "told more than once");
        drop(returns);
        stop(bed.server, &[&bed.socket]).map(drop)
    });
}

/// Linux says each news to its user, as a new size, whatever it is.
#[test]
fn a_front_end_with_a_region_is_told_by_the_next_server_only_of_another_size() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 2);
        disk.create(4 * MIB, 7)?;
        let mut server = disk.serve(program)?;
        let mut device = RawDevice::connect_tracked(&disk.socket(), shape())?;
        let mut channel = device.open_channel()?;
        ensure!(capacity(&device)? == 4 * MIB as u64, "at first");
        for _ in 0..2 {
            server.kill()?;
            server = disk.serve(program)?;
            device.negotiate_again(&disk.socket())?;
            channel = device.open_channel()?;
            device.share_and_start()?;
            ensure!(write(&mut device, MIB, 4)?.is_ok(), "a write");
            ensure!(is_silent(&mut channel)?, "told what it knows: {}", server.log());
        }
        let mut line = disk.arguments();
        line.push("--takeover".to_owned());
        let new = program.spawn(&line)?;
        new.wait_for_log("has handed over", LIMIT).with_context(|| new.log())?;
        ensure!(server.wait(LIMIT)?.code() == Some(0), "the old process: {}", server.log());
        ensure!(write(&mut device, MIB, 5)?.is_ok(), "a write after the takeover");
        ensure!(is_silent(&mut channel)?, "told what it knows: {}", new.log());
        server = new;
        server.kill()?;
        std::fs::File::options().write(true).open(disk.image())?.set_len(8 * MIB as u64)?;
        server = disk.serve(program)?;
        device.negotiate_again(&disk.socket())?;
        channel = device.open_channel()?;
        device.share_and_start()?;
        ensure!(write(&mut device, 6 * MIB, 6)?.is_ok(), "a write where it has grown");
        ensure!(!is_silent(&mut channel)?, "not told: {}", server.log());
        server.wait_for_log(
            "has grown from 4194304 to 8388608 bytes since its client was told",
            LIMIT,
        )?;
        drop(device);
        stop(server, &[&disk.socket()]).map(drop)
    });
}

#[test]
fn a_takeover_hands_the_channel_over_and_tells_of_the_size() {
    on(&RIGS[..1], |rig| {
        let mut bed = Bed::new(rig, &[1; 4 * MIB], "")?;
        let mut device = RawDevice::connect(&bed.socket, shape())?;
        let mut channel = device.open_channel()?;
        ensure!(capacity(&device)? == 4 * MIB as u64, "at first");
        let mut line = bed.arguments.clone();
        line.push("--takeover".to_owned());
        let new = rig.program().spawn(&line)?;
        new.wait_for_log("has handed over", LIMIT)
            .with_context(|| format!("new: {}\nold: {}", new.log(), bed.server.log()))?;
        let mut old = std::mem::replace(&mut bed.server, new);
        let status = old.wait(LIMIT)?;
        ensure!(status.code() == Some(0), "the old process ended with {status}: {}", old.log());
        // The new process does not know what the front end was told.
        hear(&mut channel, &bed)?;
        ensure!(capacity(&device)? == 4 * MIB as u64, "as before");
        bed.device.resize(&bed.image, 8 << 20)?;
        hear(&mut channel, &bed)?;
        ensure!(capacity(&device)? == 8 * MIB as u64, "after it has grown");
        ensure!(write(&mut device, 7 * MIB, 5)?.is_ok(), "a write where it has grown");
        drop(device);
        stop(bed.server, &[&bed.socket]).map(drop)
    });
}

#[test]
fn a_file_that_grows_is_noticed_when_somebody_asks() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 2);
        disk.create(4 * MIB, 7)?;
        let server = disk.serve(program)?;
        let mut device = RawDevice::connect(&disk.socket(), shape())?;
        ensure!(capacity(&device)? == 4 * MIB as u64, "at first");
        let file = std::fs::File::options().write(true).open(disk.image())?;
        // The part of a block at the end cannot be had with direct I/O.
        file.set_len(8 * MIB as u64 + 100)?;
        ensure!(write(&mut device, 6 * MIB, 3)?.is_io_error(), "nobody has asked");
        ensure!(capacity(&device)? == 8 * MIB as u64, "after it has grown");
        ensure!(write(&mut device, 8 * MIB - BLOCK, 3)?.is_ok(), "a write where it has grown");
        let found = read(&mut device, 8 * MIB - BLOCK)?;
        ensure!(found.is_ok_and(|found| found == [3; BLOCK]), "a read there");
        drop(device);
        stop(server, &[&disk.socket()]).map(drop)
    });
}
