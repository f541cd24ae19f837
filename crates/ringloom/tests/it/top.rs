//! `ringloom top`: in a terminal, and printed; with ringloom and with qemu-storage-daemon.

mod ends;
mod printed;
mod terminal;
mod watched;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Request, Segment, Shape};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, Program, Server};

use crate::control::{monitor, monitor_socket};
use crate::support::ringloom;

/// No screen takes a tenth of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A daemon with two exports on one of two iothreads, and monitors: one that may do everything, one that is read-only.
fn serve(bench: &Bench) -> Result<Server> {
    if !bench.path("disk.img").exists() {
        image::create_filled(&bench.path("disk.img"), 64 << 20, 7)?;
    }
    let words = [
        "--chardev",
        "socket,id=top,path=top-qmp.sock,server=on,wait=off",
        "--monitor",
        "chardev=top,readonly=on",
        "--object",
        "iothread,id=t0",
        "--object",
        "iothread,id=t1",
        "--blockdev",
        "file,node-name=disk,filename=disk.img",
        "--export",
        "vhost-user-blk,id=vm1,node-name=disk,writable=on,num-queues=2,iothread=t0,addr.type=unix,addr.path=vm1.sock",
        "--export",
        "vhost-user-blk,id=idle,node-name=disk,iothread=t1,addr.type=unix,addr.path=idle.sock",
    ];
    let line = [monitor(bench), words.map(str::to_owned).to_vec()].concat();
    let program: Program = ringloom().in_directory(bench.path(""));
    program.start(&line, &[bench.path("vm1.sock"), monitor_socket(bench)])
}

/// A guest that keeps both queues busy while something is done.
fn under_load<T>(bench: &Bench, done: impl FnOnce() -> Result<T>) -> Result<T> {
    let shape = Shape { queues: 2, ..Shape::small() };
    let mut client = Client::connect(&bench.path("vm1.sock"), shape)?;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let load = scope.spawn(move || -> Result<()> {
            let deadline = Deadline::after(LIMIT * 4);
            while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                ensure!(!deadline.has_passed(), "nobody has ended the load");
                for queue in 0..2 {
                    let segments = vec![Segment { offset: 0, length: 4096 }];
                    let read = Request::Read { offset: 0, segments };
                    client.execute(queue, &read)?;
                }
            }
            Ok(())
        });
        let result = done();
        drop(end);
        load.join().expect("it does not panic")?;
        result
    })
}

/// `ringloom top` with words that have no blanks, in the directory of a bench, as a user who has set nothing.
fn command(bench: &Bench, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringloom"));
    command.arg("top").args(line.split_whitespace()).current_dir(bench.path(""));
    command.env_remove("RINGLOOM_MONITOR").env_remove("NO_COLOR").env("TERM", "xterm-256color");
    command.env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What it printed, and how it ended.
fn printed(mut command: Command) -> Result<(Option<i32>, String, String)> {
    let output = command.output().context("run ringloom top")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// The words for one monitor, and short intervals.
fn quick(socket: &Path) -> String {
    format!("-i 0.2 {}", socket.display())
}
