//! Image locks: ringloom, QEMU and its tools never write one image at the same time.
//!
//! `ours` has a ringloom that came first, `theirs` one that comes second, `hosts` what a host cannot.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Exit, Program, Server};
use testkit::report::skipped;

use crate::support::{stop, with};

mod hosts;
mod inactive;
mod ours;
mod theirs;

/// How long a tool may take that does one thing and ends.
const TOOL_LIMIT: Duration = Duration::from_secs(60);
const IMAGE_BYTES: usize = 1 << 20;
/// What QEMU and ringloom say to who wants to write an image that somebody keeps for himself.
const NO_WRITE: &str = "Failed to get \"write\" lock";
/// What they say to who wants to be alone on an image that somebody writes.
const NO_SHARED_WRITE: &str = "Failed to get shared \"write\" lock";
/// The byte that somebody locks who writes, and who denies that to others.
const WRITES: u64 = 101;
const DENIES_WRITE: u64 = 201;
const HINT: &str = "Is another process using the image [";

/// An image and the command lines of those who want it.
struct Place {
    bench: Bench,
}

impl Place {
    fn new() -> Result<Self> {
        let bench = Bench::new()?;
        image::create_filled(&bench.path("disk.img"), IMAGE_BYTES, 0xa1)?;
        image::create_filled(&bench.path("other.img"), IMAGE_BYTES, 0xa2)?;
        Ok(Self { bench })
    }

    /// Puts real paths for IMAGE, OTHER and SOCKET, which becomes `<name>.sock`.
    fn fill_in(&self, name: &str, words: &[&str]) -> Vec<String> {
        let fill_in = |word: &&str| {
            word.replace("IMAGE", &self.bench.text("disk.img"))
                .replace("OTHER", &self.bench.text("other.img"))
                .replace("SOCKET", &self.socket(name).display().to_string())
        };
        words.iter().map(fill_in).collect()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.bench.path(&format!("{name}.sock"))
    }

    /// A daemon's command line: a node with these options, and one export of it.
    fn line(&self, name: &str, access: Access, options: &str) -> Vec<String> {
        let (read_only, writable) = match access {
            Access::Write => ("off", "on"),
            Access::Read => ("on", "off"),
        };
        let node = format!("file,node-name=n,filename=IMAGE,read-only={read_only}{options}");
        let export = format!(
            "vhost-user-blk,id={name},node-name=n,addr.type=unix,addr.path=SOCKET,writable={writable}"
        );
        self.fill_in(name, &["--blockdev", &node, "--export", &export])
    }

    /// Starts a daemon that must come up.
    fn start(&self, program: &Program, name: &str, access: Access) -> Result<Server> {
        program.start(&self.line(name, access, ""), &[self.socket(name)])
    }

    /// Uses a daemon's export, and stops the daemon. A signal right after the start would find it not
    /// ready yet.
    fn finish(&self, name: &str, server: Server) -> Result<String> {
        let socket = self.socket(name);
        drop(Client::connect(&socket, Shape::small())?.read(0, 4096, 0)?);
        stop(server, &[&socket])
    }

    /// Runs a tool to its end.
    fn run(&self, tool: &'static str, words: &[&str]) -> Result<Exit> {
        let program = Program::named(tool, tool, &[]);
        program.refusal(&self.fill_in("tool", words), TOOL_LIMIT)
    }

    /// A tool must succeed.
    fn succeeds(&self, tool: &'static str, words: &[&str]) -> Result<()> {
        let exit = self.run(tool, words)?;
        ensure!(exit.status.success(), "{tool} {words:?}: {exit:?}");
        Ok(())
    }

    /// A tool must fail with this sentence.
    fn fails(&self, tool: &'static str, words: &[&str], sentence: &str) -> Result<()> {
        let exit = self.run(tool, words)?;
        ensure!(!exit.status.success(), "{tool} {words:?} got the image: {exit:?}");
        ensure!(exit.stderr.contains(sentence), "{tool} {words:?}: {}", exit.stderr);
        Ok(())
    }
}

/// What an export does with the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Runs a behaviour if the tools of QEMU are there.
#[track_caller]
fn with_tools(program: &Program, behaviour: impl FnOnce(&Program) -> Result<()>) {
    let tools = ["qemu-img", "qemu-io", "qemu-system-x86_64", "qemu-storage-daemon"];
    for tool in tools {
        if let Some(reason) = Program::named(tool, tool, &[]).missing() {
            skipped(&reason);
            return;
        }
    }
    with(program, behaviour);
}

/// A session that writes something and reads it back.
fn write_something(place: &Place, name: &str, stamp: u8) -> Result<()> {
    let mut client = Client::connect(&place.socket(name), Shape::small())?;
    client.write(4096, &[stamp; 4096], 0)?;
    ensure!(client.read(4096, 4096, 8192)? == [stamp; 4096], "other bytes came back");
    Ok(())
}
