//! Block devices of the host: discards and zeroes on every engine, and devices that change their size.

use std::path::PathBuf;

use anyhow::{Context, Result};
use testkit::image;
use testkit::loop_device::LoopDevice;
use testkit::process::{Bench, Program, Server};
use testkit::report::{note, skipped};

use crate::support::{ringloom, ringloom_without_io_uring, with};

mod guest;
mod sizes;
mod space;

/// How a server does I/O.
#[derive(Clone, Copy, Debug)]
struct Rig {
    io_uring: bool,
    direct: &'static str,
    aio: &'static str,
}

const fn rig(io_uring: bool, direct: &'static str, aio: &'static str) -> Rig {
    Rig { io_uring, direct, aio }
}

/// Every engine, and both reactors.
const RIGS: [Rig; 7] = [
    rig(true, "on", "io_uring"),
    rig(true, "off", "io_uring"),
    rig(true, "on", "native"),
    rig(true, "on", "threads"),
    rig(true, "off", "threads"),
    rig(false, "on", "native"),
    rig(false, "off", "threads"),
];

impl Rig {
    fn program(self) -> Program {
        if self.io_uring { ringloom() } else { ringloom_without_io_uring() }
    }
}

/// A server on a loop device over an image. Ends before the device does.
struct Bed {
    server: Server,
    arguments: Vec<String>,
    device: LoopDevice,
    image: PathBuf,
    socket: PathBuf,
    bench: Bench,
}

impl Bed {
    /// On an image with this content, in blocks of 512 bytes, whatever else the node says.
    fn new(rig: Rig, content: &[u8], node: &str) -> Result<Self> {
        let bench = Bench::new()?;
        let image = bench.path("image");
        image::create_with(&image, content)?;
        let device = LoopDevice::attach(&image, 512)?;
        let socket = bench.path("s");
        let Rig { direct, aio, .. } = rig;
        let node = format!(
            "driver=host_device,node-name=n,filename={},cache.direct={direct},aio={aio}{node}",
            device.path().display()
        );
        let export = format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on,num-queues=2,\
             iothread.0=a,iothread.1=b",
            socket.display()
        );
        let iothreads = ["--object", "iothread,id=a", "--object", "iothread,id=b"];
        let rest = ["--blockdev", &node, "--export", &export];
        let arguments: Vec<String> =
            iothreads.iter().chain(&rest).map(|word| (*word).to_owned()).collect();
        let server = rig.program().start(&arguments, std::slice::from_ref(&socket))?;
        Ok(Self { server, arguments, device, image, socket, bench })
    }

    /// The device, as another process of the host reads it through the page cache.
    fn as_the_host_sees_it(&self) -> Result<Vec<u8>> {
        std::fs::read(self.device.path()).context("read the device")
    }
}

/// Runs a behaviour on these engines and reactors, or says why it cannot.
#[track_caller]
fn on(rigs: &[Rig], behaviour: impl Fn(Rig) -> Result<()>) {
    if let Some(reason) = LoopDevice::missing() {
        return skipped(reason);
    }
    for rig in rigs {
        note(&format!("{rig:?}"));
        with(&rig.program(), |_program| behaviour(*rig));
    }
}
