//! Attacks by number: connections, descriptors and questions.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};

use super::{Arena, Attack, Victim};
use crate::deadline::Deadline;
use crate::hostile::service::Phase;
use crate::rawring::{FrontEnd, RawDevice, RawShape, request};
use crate::rng::Rng;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "connections", victim: Victim::Other, run: connections },
    Attack { name: "bags of descriptors", victim: Victim::Raw, run: bags },
    Attack { name: "answers that are never read", victim: Victim::Other, run: unread },
    Attack { name: "queues set up and dropped", victim: Victim::Raw, run: queues },
];

/// How long a flood lasts.
const FLOOD: Duration = Duration::from_secs(1);

/// Does something as often as possible.
fn flood(arena: &Arena<'_>, mut one: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Deadline::after(FLOOD);
    while !end.has_passed() && arena.service.goes_on(Phase::Attack) {
        one()?;
    }
    arena.others_go_on();
    Ok(())
}

fn connections(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let socket = arena.disks.socket(Victim::Other);
    flood(arena, || UnixStream::connect(&socket).context("connect").map(drop))
}

fn bags(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let socket = arena.disks.socket(Victim::Raw);
    let bells = (0..16)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC).context("eventfd"))
        .collect::<Result<Vec<OwnedFd>>>()?;
    let fds: Vec<BorrowedFd<'_>> = bells.iter().map(AsFd::as_fd).collect();
    let table = [request::SET_MEM_TABLE, 1, 72].map(u32::to_le_bytes).concat();
    flood(arena, || FrontEnd::connect(&socket)?.send_bytes(&table, &fds))
}

fn unread(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let socket = arena.disks.socket(Victim::Other);
    let question = [request::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat().repeat(64);
    let mut stream = UnixStream::connect(socket).context("connect")?;
    stream.set_nonblocking(true).context("do not wait")?;
    flood(arena, || match stream.write(&question) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            std::thread::yield_now();
            Ok(())
        }
        Err(error) => Err(error).context("ask"),
    })
}

fn queues(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let socket = arena.disks.socket(Victim::Raw);
    let shape = RawShape { queues: 2, queue_size: 8, ..RawShape::default() };
    flood(arena, || RawDevice::connect(&socket, shape).map(drop))
}
