//! When data is safe from a power cut, and what becomes of the host's errors: on a disk that counts syncs, knows what a
//! power cut would leave, and fails when it is told to.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testkit::fuse_faults::FaultDisk;
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{
    BlockRequest, Form, Outcome, RawDevice, RawShape, feature, flag, kind, request,
};
use testkit::report::{note, skipped};

use crate::support::{ringloom, ringloom_without_io_uring, with};

mod faults;
mod guest;
mod modes;
mod restart;

const DISK_BYTES: usize = 4 << 20;
/// The bytes of a request: blocks that direct I/O takes as they are.
const BLOCK: usize = 4096;
/// `writeback` in the configuration space.
const WRITEBACK: u32 = 32;

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

    /// Whether what must be stable is written as such, or written and then synced.
    fn writes_stable(self) -> bool {
        self.direct == "on"
    }
}

/// A server on a disk with faults. Ends before the disk does.
struct Bed {
    server: Server,
    program: Program,
    arguments: Vec<String>,
    disk: FaultDisk,
    socket: PathBuf,
    _bench: Bench,
}

impl Bed {
    /// Two queues on two iothreads, whatever else the export says.
    fn new(rig: Rig, export: &str) -> Result<Self> {
        Self::on_node(rig, "", export)
    }

    /// The same, whatever else the node says.
    fn on_node(rig: Rig, node: &str, export: &str) -> Result<Self> {
        let queues = ",num-queues=2,iothread.0=a,iothread.1=b";
        Self::on(&rig.program(), rig, node, &format!("{queues}{export}"))
    }

    fn on(program: &Program, rig: Rig, node: &str, export: &str) -> Result<Self> {
        let bench = Bench::new()?;
        let disk = FaultDisk::mount(&bench.path("faults"), DISK_BYTES)?;
        let socket = bench.path("s");
        let Rig { direct, aio, .. } = rig;
        let node = format!(
            "driver=file,node-name=n,filename={},cache.direct={direct},aio={aio},discard=unmap{node}",
            disk.image().display()
        );
        let export = format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on{export}",
            socket.display()
        );
        let arguments = [
            "--object",
            "iothread,id=a",
            "--object",
            "iothread,id=b",
            "--blockdev",
            &node,
            "--export",
            &export,
        ];
        let (program, arguments) = (program.clone(), arguments.map(str::to_owned).to_vec());
        let server = program.start(&arguments, std::slice::from_ref(&socket))?;
        Ok(Self { server, program, arguments, disk, socket, _bench: bench })
    }

    /// Kills the server, and starts it again in the same way.
    fn restart(&mut self) -> Result<()> {
        self.server.kill()?;
        self.server = self.program.start(&self.arguments, std::slice::from_ref(&self.socket))?;
        Ok(())
    }

    /// A driver with everything but what is named.
    fn driver_without(&self, features: u64) -> Result<RawDevice> {
        RawDevice::connect(&self.socket, shape_without(features))
    }

    /// A driver that has an in-flight region.
    fn tracked_driver(&self) -> Result<RawDevice> {
        RawDevice::connect_tracked(&self.socket, shape_without(0))
    }

    fn driver(&self) -> Result<RawDevice> {
        self.driver_without(0)
    }
}

fn shape_without(features: u64) -> RawShape {
    let shape = RawShape { queues: 2, ..RawShape::default() };
    let features = (shape.features | feature::BLK_CONFIG_WCE) & !features;
    RawShape { features, ..shape }
}

/// Runs a behaviour on every engine and reactor, or says why it cannot.
#[track_caller]
fn on_all(behaviour: impl Fn(Rig) -> Result<()>) {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    for rig in RIGS {
        note(&format!("{rig:?}"));
        with(&rig.program(), |_program| behaviour(rig));
    }
}

/// One block of this byte, written to this block of the disk.
fn write(device: &mut RawDevice, queue: u32, block: usize, byte: u8) -> Result<Outcome> {
    device.put(0, &[byte; BLOCK]);
    let data = vec![device.data(0, u32::try_from(BLOCK)?, 0)];
    let sector = (block * BLOCK / 512) as u64;
    device.request(queue, &BlockRequest { kind: kind::OUT, sector, data, form: Form::Direct })
}

fn read(device: &mut RawDevice, block: usize) -> Result<(Outcome, Vec<u8>)> {
    device.put(0, &[0xee; BLOCK]);
    let data = vec![device.data(0, u32::try_from(BLOCK)?, flag::WRITE)];
    let sector = (block * BLOCK / 512) as u64;
    let request = BlockRequest { kind: kind::IN, sector, data, form: Form::Direct };
    let outcome = device.request(0, &request)?;
    Ok((outcome, device.get(0, BLOCK)))
}

/// A discard or zeroing of one block.
fn range(device: &mut RawDevice, queue: u32, kind: u32, block: usize) -> Result<Outcome> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&((block * BLOCK / 512) as u64).to_le_bytes());
    bytes[8..12].copy_from_slice(&u32::try_from(BLOCK / 512)?.to_le_bytes());
    device.put(0, &bytes);
    let data = vec![device.data(0, 16, 0)];
    device.request(queue, &BlockRequest { kind, sector: 0, data, form: Form::Direct })
}

fn flush(device: &mut RawDevice, queue: u32) -> Result<Outcome> {
    let request =
        BlockRequest { kind: kind::FLUSH, sector: 0, data: Vec::new(), form: Form::Direct };
    device.request(queue, &request)
}

#[track_caller]
fn ok(outcome: Outcome) -> Result<()> {
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

/// `writeback` as a front end reads it.
fn writeback(device: &RawDevice) -> Result<u8> {
    let space = device.front_end.configuration(60)?;
    space.get(usize::try_from(WRITEBACK)?).copied().context("a short configuration space")
}

/// Switches the mode and waits until that is answered.
fn switch(device: &RawDevice, writeback: u8) -> Result<()> {
    device.front_end.send_configuration(WRITEBACK, &[writeback])?;
    let reply = device.front_end.receive(request::SET_CONFIG)?.context("the session ended")?;
    ensure!(reply == [0; 8], "SET_CONFIG was answered {reply:?}");
    Ok(())
}

/// The byte that each block holds after a power cut.
fn durable(disk: &FaultDisk, blocks: std::ops::Range<usize>) -> Result<Vec<u8>> {
    blocks
        .map(|block| {
            let bytes = disk.durable(block * BLOCK..(block + 1) * BLOCK);
            ensure!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is torn");
            Ok(bytes[0])
        })
        .collect()
}
