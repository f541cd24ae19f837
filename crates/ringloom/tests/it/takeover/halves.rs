//! Clients that are in the middle of something when the process they talk to is replaced.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, SealFlags};
use testkit::client::{Client, Shape};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, START_LIMIT};
use testkit::rawring::{
    BlockRequest, Form, FrontEnd, RawDevice, RawShape, Region, flag, kind, request,
};

use super::{disk, line, replace};
use crate::support::{Disk, Iothreads, ringloom, stop, with};

/// A takeover that waits for a client would take 10 s, and fail.
const SOON: Duration = Duration::from_secs(8);

/// A region that lies beside those of a [`RawDevice`], in a file of its own.
const ANOTHER: Region =
    Region { guest_address: 1 << 40, size: 1 << 20, user_address: 1 << 40, file_offset: 0 };

/// What of a question is sent before the takeover, in bytes; the rest is sent after it.
const CUTS: [usize; 4] = [0, 5, 12, 15];

/// A client that has sent half a message is taken over with it.
#[test]
fn half_a_message_is_answered_by_the_new_process() {
    with(&ringloom(), |program| {
        for cut in CUTS {
            let bench = Bench::new()?;
            let disk = disk(&bench, 1);
            image::create_sparse(&disk.image(), 1 << 20)?;
            let mut old = disk.serve(program)?;
            let front_end = FrontEnd::connect(&disk.socket())?;
            front_end.ask_word(request::GET_FEATURES)?;
            let features = 1_u64 << 32;
            let set = [request::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat();
            let message = [set, features.to_le_bytes().to_vec()].concat();
            front_end.send_bytes(&message[..cut], &[])?;
            // It waits for the rest, and does not look for it all the time.
            let before = old.cpu_time()?;
            old.wait_while_running(Duration::from_millis(500))?;
            let used = old.cpu_time()?.saturating_sub(before);
            ensure!(used < Duration::from_millis(250), "it used a CPU for {used:?} of 500 ms");
            let clock = Deadline::after(SOON);
            let new = replace(program, &line(&disk), old)?;
            let took = clock.elapsed();
            ensure!(took < SOON, "cut after {cut} bytes: it took {took:?}");
            front_end.send_bytes(&message[cut..], &[])?;
            let offered = front_end.ask_word(request::GET_FEATURES).context("the new process")?;
            ensure!(offered & features != 0, "{offered:x}");
            drop(front_end);
            // Nobody else was kept from the export for good.
            Client::connect(&disk.socket(), Shape::small())?.write(0, &[7; 4096], 0)?;
            stop(new, &[&disk.socket()])?;
        }
        Ok(())
    });
}

/// A client whose first queue waits for an image that another process has is handed over, and waits on.
#[test]
fn a_client_that_waits_for_an_image_is_taken_over() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { iothreads: Iothreads::None, ..disk(&bench, 1) };
        let image = disk.create(1 << 20, 6)?;
        let owner = Disk { id: "owner", ..disk.clone() };
        let usual = owner.image().display().to_string();
        let name = disk.image().display().to_string();
        let words = owner.arguments().iter().map(|word| word.replace(&usual, &name)).collect();
        let holds = |words: Vec<String>| program.start(&words, &[owner.socket()]);
        let owner_server = holds(words)?;
        let inactive = |words: Vec<String>| -> Vec<String> {
            words
                .iter()
                .map(|word| {
                    word.replace(
                        "node-name=file-e0,filename",
                        "active=off,node-name=file-e0,filename",
                    )
                })
                .collect()
        };
        let old = program.start(&inactive(disk.arguments()), &[disk.socket()])?;
        let socket = disk.socket();
        let reader = std::thread::spawn(move || -> Result<Vec<u8>> {
            Client::connect(&socket, Shape::small())?.read(4096, 4096, 0)
        });
        old.wait_for_log("trying for up to 30 s", START_LIMIT)?;
        let clock = Deadline::after(SOON);
        let new = replace(program, &inactive(line(&disk)), old)?;
        let took = clock.elapsed();
        ensure!(took < SOON, "it took {took:?}");
        new.wait_for_log("trying for up to 30 s", START_LIMIT)?;
        ensure!(!reader.is_finished(), "two have the image: {}", new.log());
        stop(owner_server, &[&owner.socket()])?;
        let found = reader.join().expect("the reader does not panic")?;
        ensure!(found == image[4096..8192], "other bytes than there are");
        stop(new, &[&disk.socket()]).map(drop)
    });
}

/// A client that waits for another one to leave goes on waiting, and is served by the new process.
#[test]
fn a_client_that_waits_for_its_turn_is_handed_over() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        image::create_sparse(&disk.image(), 1 << 20)?;
        let old = disk.serve(program)?;
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        client.write(0, &[5; 4096], 0)?;
        let second = FrontEnd::connect(&disk.socket())?;
        second.send(request::GET_FEATURES, &[], &[])?;
        old.wait_for_log("another client waits", START_LIMIT)?;
        let new = replace(program, &line(&disk), old)?;
        new.wait_for_log("another client waits", START_LIMIT)?;
        ensure!(client.read(0, 4096, 0)? == [5; 4096], "other bytes than were written");
        drop(client);
        ensure!(second.receive(request::GET_FEATURES)?.is_some(), "it was hung up on");
        drop(second);
        stop(new, &[&disk.socket()]).map(drop)
    });
}

/// Shares one region more, of a file that can be sealed.
fn share_another(device: &RawDevice) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("another", flags)?;
    rustix::fs::ftruncate(&file, ANOTHER.size)?;
    let [first, second] = device.regions();
    let memory = device.memory.file();
    let table = Region::table(&[first, second, ANOTHER]);
    device.front_end.must(request::SET_MEM_TABLE, &table, &[memory, memory, file.as_fd()])?;
    Ok(file)
}

/// What a client has shared may be nobody's any more, or nobody's who has not mapped it yet. Its session ends, and the
/// upgrade goes on.
#[test]
fn a_client_whose_memory_cannot_be_had_keeps_nobody_from_an_upgrade() {
    upgrade_beside("ends at byte", |device| {
        rustix::fs::ftruncate(device.memory.file(), 0)?;
        Ok(None)
    });
    upgrade_beside("Operation not permitted", |device| {
        let file = share_another(device)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE)?;
        Ok(Some(file))
    });
}

/// Upgrades while a client has done something to its memory; the session ends with these words.
fn upgrade_beside(words: &str, spoil: impl Fn(&RawDevice) -> Result<Option<OwnedFd>>) {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disks = [disk(&bench, 1), Disk { id: "e1", ..disk(&bench, 1) }];
        for disk in &disks {
            disk.create_sparse(1 << 20)?;
        }
        let old = crate::support::serve(program, &disks)?;
        let mut client = Client::connect(&disks[0].socket(), Shape::small())?;
        client.write(0, &[5; 4096], 0)?;
        let hostile = RawDevice::connect(&disks[1].socket(), RawShape::default())?;
        // The old process would find out as well, if it looked into its ring.
        hostile.stop_ring(0)?;
        let _another = spoil(&hostile)?;
        let all = [line(&disks[0]), disks[1].arguments()].concat();
        let new = replace(program, &all, old)?;
        new.wait_for_log("export e1: session ended: ", START_LIMIT)?;
        ensure!(new.log().contains(words), "{}", new.log());
        ensure!(client.read(0, 4096, 0)? == [5; 4096], "other bytes than were written");
        // It hears of that, and the next one is served.
        hostile.front_end.wait_for_end()?;
        let mut next = Client::connect(&disks[1].socket(), Shape::small())?;
        next.write(0, &[6; 4096], 0)?;
        drop((client, next, hostile));
        stop(new, &[&disks[0].socket(), &disks[1].socket()]).map(drop)
    });
}

/// While regions of memory are exchanged a queue may lie in none. It waits, whoever serves it.
#[test]
fn a_queue_that_waits_for_its_memory_is_taken_over() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let old = disk.serve(program)?;
        let mut device = RawDevice::connect(&disk.socket(), RawShape::default())?;
        let regions = device.regions();
        let share = |device: &RawDevice, regions: &[Region]| {
            let files = vec![device.memory.file(); regions.len()];
            device.front_end.must(request::SET_MEM_TABLE, &Region::table(regions), &files)
        };
        share(&device, &regions[1..])?;
        let new = replace(program, &line(&disk), old)?;
        share(&device, &regions)?;
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
        ensure!(device.request(0, &read)?.is_ok(), "it is not served");
        drop(device);
        stop(new, &[&disk.socket()]).map(drop)
    });
}
