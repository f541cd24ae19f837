//! A new process that could not go on leaves the old one as it is.

use anyhow::{Result, ensure};
use testkit::client::RingLayout;
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::rawring::{BlockRequest, DirtyLog, Form, RawDevice, RawShape, Survivor, flag, kind};

use super::{Busy, LIMIT, disk, line, replace, work};
use crate::support::{Disk, ringloom, stop, with};

const QUEUES: u16 = 2;

impl Busy<'_> {
    /// This line must fail with this sentence, and the client must not notice.
    fn refuse(&mut self, program: &Program, line: &[String], named: &[&str]) -> Result<()> {
        self.client.submit(&mut self.rng)?;
        let exit = program.refusal(line, LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
        for name in named {
            ensure!(exit.stderr.contains(name), "{name:?} is not in {}", exit.stderr);
        }
        work(&mut self.client, &mut self.rng, 5)?;
        ensure!(self.server.is_alive()?, "the old process has ended: {}", self.server.log());
        self.client.drain()
    }
}

fn other(line: &[String], from: &str, to: &str) -> Vec<String> {
    let changed: Vec<String> = line.iter().map(|word| word.replace(from, to)).collect();
    assert_ne!(changed, line, "{from} is in the line");
    changed
}

#[test]
fn a_wrong_line_leaves_the_old_process_as_it_is() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let mut busy = Busy::begin(program, disk(&bench, QUEUES), RingLayout::Split)?;
        let right = line(&busy.disk);
        image::create_sparse(&bench.path("other.img"), Survivor::disk_bytes(QUEUES))?;
        let cases: [(&str, &str, &[&str]); 8] = [
            ("e0.img", "absent.img", &["absent.img", "No such file"]),
            ("iothread.1=t1", "iothread.1=t9", &["t9"]),
            ("e0.img", "other.img", &["image", "which goes on serving"]),
            ("id=e0,", "id=e9,", &["serial number"]),
            ("num-queues=2", "num-queues=1", &["number of queues"]),
            ("discard=unmap", "discard=unmap,bogus=1", &["bogus"]),
            ("writable=on", "writable=off", &["writable (off here, on there)"]),
            ("writable=on", "writable=on,logical-block-size=4096", &["logical block size"]),
        ];
        for (from, to, named) in cases {
            busy.refuse(program, &other(&right, from, to), named)?;
        }
        let pidfile = bench.text("none/pid");
        let with_pidfile = [&right[..], &["--pidfile".to_owned(), pidfile]].concat();
        busy.refuse(program, &with_pidfile, &["none/pid"])?;
        // After all that it can still hand over.
        busy.server = replace(program, &right, busy.server)?;
        work(&mut busy.client, &mut busy.rng, 5)?;
        busy.end().map(drop)
    });
}

#[test]
fn an_export_that_nobody_would_serve_is_a_reason_to_refuse() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disks = [disk(&bench, 1), Disk { id: "e1", ..disk(&bench, 1) }];
        for disk in &disks {
            image::create_sparse(&disk.image(), 1 << 20)?;
        }
        let mut old = crate::support::serve(program, &disks)?;
        let exit = program.refusal(&line(&disks[0]), LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        let sentence = "export e1 is not on the new command line, and nobody would serve it";
        ensure!(exit.stderr.contains(sentence), "{}", exit.stderr);
        ensure!(old.is_alive()?, "the old process has ended");
        // More exports than before are fine.
        image::create_sparse(&bench.path("e2.img"), 1 << 20)?;
        let third = Disk { id: "e2", ..disk(&bench, 1) };
        let all = [line(&disks[0]), disks[1].arguments(), third.arguments()].concat();
        let new = replace(program, &all, old)?;
        let sockets = [disks[0].socket(), disks[1].socket(), third.socket()];
        for socket in &sockets {
            let mut client =
                testkit::client::Client::connect(socket, testkit::client::Shape::small())?;
            client.write(0, &[7; 4096], 0)?;
        }
        stop(new, &sockets.each_ref().map(|socket| socket.as_path())).map(drop)
    });
}

#[test]
fn a_guest_that_is_being_migrated_stays_where_it_is() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        image::create_sparse(&disk.image(), 1 << 20)?;
        let mut old = disk.serve(program)?;
        let mut device = RawDevice::connect(&disk.socket(), RawShape::default())?;
        let log = DirtyLog::new(RawDevice::guest_end())?;
        device.start_log(&log)?;
        let exit = program.refusal(&line(&disk), LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        ensure!(exit.stderr.contains("export e0: its guest is being migrated"), "{}", exit.stderr);
        ensure!(old.is_alive()?, "the old process has ended");
        log.take();
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
        ensure!(device.request(0, &read)?.is_ok(), "it is not served");
        ensure!(!log.take().is_empty(), "and what it reads is not marked");
        device.stop_log()?;
        log.take();
        // A migration that was cancelled: no front end takes its log back, which the new process has as well.
        let new = replace(program, &line(&disk), old)?;
        ensure!(device.request(0, &read)?.is_ok(), "it is not served");
        ensure!(log.take().is_empty(), "nothing is to be marked");
        device.use_log_again()?;
        ensure!(device.request(0, &read)?.is_ok(), "it is not served");
        ensure!(!log.take().is_empty(), "what is read is not marked in the log that there is");
        device.stop_log()?;
        drop(device);
        stop(new, &[&disk.socket()]).map(drop)
    });
}

#[test]
fn a_socket_of_another_program_is_not_taken() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        image::create_sparse(&disk.image(), 1 << 20)?;
        let listener = std::os::unix::net::UnixListener::bind(disk.socket())?;
        let exit = program.refusal(&line(&disk), LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        ensure!(exit.stderr.contains("is neither ringloom nor"), "{}", exit.stderr);
        drop(listener);
        Ok(())
    });
}

#[test]
fn without_a_predecessor_it_starts_and_says_so() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, 1);
        image::create_sparse(&disk.image(), 1 << 20)?;
        // A socket that a killed process has left is nobody's.
        drop(std::os::unix::net::UnixListener::bind(disk.socket())?);
        let server = program.start(&line(&disk), &[disk.socket()])?;
        let log = stop(server, &[&disk.socket()])?;
        ensure!(log.contains("nothing to take over"), "{log}");
        Ok(())
    });
}
