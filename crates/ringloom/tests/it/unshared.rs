//! Guest memory that is not shared is told of, with what there is to do.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::deadline::poll_until;
use testkit::memory::SharedMemory;
use testkit::process::{Bench, Server};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, Region, flag, kind, request};
use testkit::report::skipped;

use crate::paused_qemu::Qemu;
use crate::support::{Disk, Iothreads, ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(20);
/// QEMU's firmware takes its time without KVM on a busy machine.
const FIRMWARE_LIMIT: Duration = Duration::from_secs(120);
const REMEDY: &str = "memory-backend-memfd,id=mem0,size=4G,share=on -machine memory-backend=mem0; for libvirt: \
                      <memoryBacking> with <source type='memfd'/> and <access mode='shared'/>";
const NO_MEMORY: &str = "is set up, but the front end shares no memory";
const NO_REQUEST: &str =
    "is kicked and shows no request, so the guest's memory is probably not shared";

fn serve<'a>(bench: &'a Bench, iothreads: Iothreads) -> Result<(Disk<'a>, Server)> {
    let disk = Disk { iothreads, ..Disk::new(bench, "d", 2) };
    disk.create_sparse(1 << 20)?;
    let server = disk.serve(&ringloom())?;
    Ok((disk, server))
}

fn shape() -> RawShape {
    RawShape { queues: 2, ..RawShape::default() }
}

/// Stops the server, whose log says this once, with the remedy.
fn said_once(server: Server, said: &str) -> Result<()> {
    let log = stop(server, &[])?;
    let count = log.matches(said).count();
    ensure!(count == 1 && log.contains(REMEDY), "{count} times: {log}");
    Ok(())
}

#[test]
fn queues_without_memory_are_told_of_once() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (disk, server) = serve(&bench, Iothreads::None)?;
        let mut device = RawDevice::negotiated(&disk.socket(), shape())?;
        for queue in 0..2 {
            device.start_ring(queue, 0)?;
        }
        server.wait_for_log(NO_MEMORY, LIMIT)?;
        // It may come yet.
        let table = Region::table(&device.regions());
        let files = [device.memory.file(), device.memory.file()];
        device.front_end.must(request::SET_MEM_TABLE, &table, &files)?;
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
        ensure!(device.request(1, &read)?.is_ok(), "a read");
        said_once(server, NO_MEMORY)
    });
}

#[test]
fn kicks_of_a_guest_whose_memory_is_another_are_told_of_once() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (disk, server) = serve(&bench, Iothreads::Two)?;
        let mut device = RawDevice::negotiated(&disk.socket(), shape())?;
        // As it was, and never changes: the guest writes to pages of its own.
        let copy = SharedMemory::new(device.memory.length())?;
        let table = Region::table(&device.regions());
        device.front_end.must(request::SET_MEM_TABLE, &table, &[copy.file(), copy.file()])?;
        for queue in 0..2 {
            device.start_ring(queue, 0)?;
        }
        for queue in 0..2 {
            let (header, status) = device.frame(kind::IN, 0);
            let data = device.data(0, 4096, flag::WRITE);
            device.ring(queue).set_chain(0, &[header, data, status]);
            device.ring_mut(queue).offer(0);
        }
        // The first kick may be one that came with the descriptor, and kicks that follow each other at once are one.
        poll_until("a word about the memory", LIMIT, || {
            (0..2).try_for_each(|queue| device.ring(queue).kick())?;
            Ok(server.log().contains(NO_REQUEST).then_some(()))
        })?;
        said_once(server, NO_REQUEST)
    });
}

/// Kicks without a request, among requests, are nobody's fault.
#[test]
fn needless_kicks_are_not_told_of() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (disk, server) = serve(&bench, Iothreads::Two)?;
        let mut device = RawDevice::connect(&disk.socket(), shape())?;
        for queue in 0..2 {
            let data = vec![device.data(0, 4096, flag::WRITE)];
            let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
            // One that comes with the eventfd, as QEMU gives it.
            device.ring(queue).kick()?;
            for _ in 0..20 {
                ensure!(device.request(queue, &read)?.is_ok(), "a read");
                device.ring(queue).kick()?;
            }
        }
        let log = stop(server, &[])?;
        ensure!(!log.contains("not shared"), "{log}");
        Ok(())
    });
}

/// Nor are they of a ring that was served before, as one is that another process has handed over: a kick may come late.
#[test]
fn kicks_of_a_ring_that_was_served_before_are_not_told_of() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (disk, server) = serve(&bench, Iothreads::None)?;
        let mut device = RawDevice::connect(&disk.socket(), shape())?;
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
        ensure!(device.request(0, &read)?.is_ok(), "a read");
        let index = device.stop_ring(0)?;
        device.start_ring(0, index)?;
        for _ in 0..20 {
            device.ring(0).kick()?;
            // On the same iothread: what was kicked before has been seen.
            ensure!(device.request(1, &read)?.is_ok(), "a read");
        }
        ensure!(device.request(0, &read)?.is_ok(), "a read");
        let log = stop(server, &[])?;
        ensure!(!log.contains("not shared"), "{log}");
        Ok(())
    });
}

/// A QEMU without `share=on`: the firmware looks for a boot sector and waits for ever.
#[test]
fn a_qemu_that_shares_no_memory_is_told_of() {
    if let Some(reason) = Qemu::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (disk, server) = serve(&bench, Iothreads::None)?;
        let lines = format!(
            "-m 128M -machine q35 -chardev socket,id=c0,path={} -device vhost-user-blk-pci,chardev=c0",
            disk.socket().display()
        );
        let mut qemu = Qemu::start(&bench, &lines)?;
        qemu.ask(r#"{"execute":"cont"}"#)?;
        server.wait_for_log(NO_MEMORY, FIRMWARE_LIMIT)?;
        qemu.quit()?;
        said_once(server, NO_MEMORY)
    });
}
