//! Clients that are in the middle of something when the process they talk to is replaced.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, START_LIMIT};
use testkit::rawring::{FrontEnd, request};

use super::{disk, line, replace};
use crate::support::{Disk, Iothreads, ringloom, stop, with};

/// A takeover that waits for a client would take 10 s, and fail.
const SOON: Duration = Duration::from_secs(8);

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
