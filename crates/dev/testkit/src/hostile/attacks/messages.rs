//! Attacks with vhost-user messages: any of them in any order, halves, more descriptors than anybody needs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::{Arena, Attack, PATIENCE, Victim, offer_many, read_of};
use crate::memory::SharedMemory;
use crate::rawring::{FrontEnd, RawDevice, RawShape, feature, protocol_feature, request};
use crate::rng::Rng;

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "any messages", victim: Victim::Raw, run: any_messages },
    Attack { name: "half messages that stay", victim: Victim::Other, run: halves },
    Attack { name: "SET_VRING_CALL without end (9)", victim: Victim::Null, run: calls },
    Attack { name: "an eventfd with 4900 waiters (17)", victim: Victim::Raw, run: waiters },
];

/// Instances of epoll that wait for one eventfd, and how often each does.
const EPOLLS: usize = 70;
const ENTRIES: usize = 70;

fn bell() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")
}

/// A header of twelve bytes and its payload.
fn message(request: u32, flags: u32, size: usize, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(size).expect("small");
    let mut bytes: Vec<u8> = [request, flags, size].map(u32::to_le_bytes).concat();
    bytes.extend_from_slice(payload);
    bytes
}

/// Messages of all kinds with payloads and descriptors of all kinds, to a session that is set up or is not.
fn any_messages(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let memory = SharedMemory::new(1 << 20)?;
    let (bell, zero) = (bell()?, std::fs::File::open("/dev/zero").context("open /dev/zero")?);
    let kinds: [BorrowedFd<'_>; 3] = [bell.as_fd(), memory.file(), zero.as_fd()];
    let socket = arena.disks.socket(Victim::Raw);
    for _ in 0..40 {
        let device = RawDevice::negotiated(&socket, RawShape::default())?;
        if rng.one_in(2) {
            device.share_and_start()?;
        }
        for _ in 0..30 {
            let kind = u32::try_from(rng.below(45)).context("small")?;
            let mut payload = vec![0; rng.index(10) * 8];
            if rng.one_in(2) {
                rng.fill(&mut payload);
            }
            let size = if rng.one_in(20) { rng.index(5000) } else { payload.len() };
            let fds: Vec<BorrowedFd<'_>> = (0..rng.index(4)).map(|_| kinds[rng.index(3)]).collect();
            let flags = if rng.one_in(20) { 0 } else { 1 };
            device.front_end.send_bytes(&message(kind, flags, size, &payload), &fds)?;
        }
    }
    arena.others_go_on();
    Ok(())
}

/// A header that announces more than comes, with as many descriptors as a message may have.
fn halves(arena: &Arena<'_>, rng: &mut Rng) -> Result<()> {
    let bells = (0..8).map(|_| bell()).collect::<Result<Vec<_>>>()?;
    let fds: Vec<BorrowedFd<'_>> = bells.iter().map(AsFd::as_fd).collect();
    let socket = arena.disks.socket(Victim::Other);
    let mut open = Vec::new();
    for _ in 0..20 {
        let front_end = FrontEnd::connect(&socket)?;
        let bytes = message(request::SET_MEM_TABLE, 1, 72, &[0; 8]);
        front_end.send_bytes(&bytes[..12 + rng.index(8)], &fds)?;
        open.push(front_end);
    }
    arena.others_go_on();
    Ok(())
}

/// Each message brings a descriptor, and its iothread is busy with the ring meanwhile.
fn calls(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Null)?;
    let read = read_of(&device, 0, 64 << 20);
    offer_many(&mut device, 0, &read, 64)?;
    let bell = bell()?;
    let call = message(request::SET_VRING_CALL, 1, 8, &0_u64.to_le_bytes());
    for _ in 0..4000 {
        device.front_end.send_bytes(&call, &[bell.as_fd()])?;
    }
    arena.others_go_on();
    // A session that never agreed on anything takes them as well.
    let mut other = FrontEnd::connect(&arena.disks.socket(Victim::Null))?;
    drop(device);
    other.negotiate(feature::VERSION_1, protocol_feature::MQ)?;
    for _ in 0..1000 {
        other.send_bytes(&call, &[bell.as_fd()])?;
    }
    arena.others_go_on();
    Ok(())
}

/// Whoever writes to the eventfd calls all of them.
fn waiters(arena: &Arena<'_>, _: &mut Rng) -> Result<()> {
    let mut device = arena.device(Victim::Raw)?;
    let bells = (0..ENTRIES)
        .map(|_| device.ring(0).call_fd().try_clone_to_owned().context("a copy of the eventfd"))
        .collect::<Result<Vec<_>>>()?;
    let mut epolls = Vec::new();
    for _ in 0..EPOLLS {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        for bell in &bells {
            let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            epoll::add(&instance, bell, data, flags).context("wait for the eventfd")?;
        }
        epolls.push(instance);
    }
    let read = read_of(&device, 0, 512);
    for round in 1..=20_u16 {
        device.ring(0).set_used_event(device.ring(0).used_index());
        offer_many(&mut device, 0, &read, 16)?;
        wait_used_of_first(&device, round * 16)?;
    }
    arena.others_go_on();
    Ok(())
}

/// Of the first queue only.
fn wait_used_of_first(device: &RawDevice, count: u16) -> Result<()> {
    crate::deadline::poll_until("the requests", PATIENCE, || {
        Ok((device.ring(0).used_index() >= count || device.has_ended()?).then_some(()))
    })
}
