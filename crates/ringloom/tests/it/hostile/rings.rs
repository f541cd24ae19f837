//! Attacks with what lies in a ring: addresses, descriptors, heads and indices.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::poll_until;
use testkit::rawring::{
    Ack, Descriptor, Form, Outcome, Piece, RawDevice, RawRing, flag, kind, request,
};

use super::{Target, attacks};

/// An address in no region.
const NOWHERE: u64 = 0x55_0000_0000;
/// How long a request of an attacker may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The attacker's request may fail or its session end, but it must never succeed.
fn refused(outcome: Outcome) -> Result<()> {
    ensure!(!outcome.is_ok(), "the request succeeded: {outcome:?}");
    Ok(())
}

/// Either the addresses are refused, or the session ends when the ring is used.
fn addresses_are_refused(
    target: &Target<'_>,
    spoil: impl Fn(&RawDevice, [u64; 3]) -> [u64; 3],
) -> Result<()> {
    let device = target.device()?;
    device.stop_ring(0)?;
    let good = device.ring(0).offsets().map(|offset| device.user_address(offset));
    let ack = device.tell_ring_addresses(0, spoil(&device, good))?;
    if ack == Ack::Done {
        device.front_end.wait_for_end().context("the server agreed")?;
    }
    Ok(())
}

fn rings_outside_memory(target: &Target<'_>) -> Result<()> {
    for index in 0..3 {
        addresses_are_refused(target, |_, mut addresses| {
            addresses[index] = NOWHERE;
            addresses
        })
        .with_context(|| format!("address {index}"))?;
    }
    Ok(())
}

fn rings_half_outside_memory(target: &Target<'_>) -> Result<()> {
    for index in 0..3 {
        addresses_are_refused(target, |device, mut addresses| {
            let last = device.regions()[1];
            addresses[index] = last.user_address + last.size - 16;
            addresses
        })
        .with_context(|| format!("address {index}"))?;
    }
    Ok(())
}

fn rings_at_odd_addresses(target: &Target<'_>) -> Result<()> {
    for index in 0..3 {
        addresses_are_refused(target, |_, mut addresses| {
            addresses[index] += 1;
            addresses
        })
        .with_context(|| format!("address {index}"))?;
    }
    Ok(())
}

/// Puts these descriptors into the table, offers the first and waits for the outcome.
fn outcome_of(target: &Target<'_>, descriptors: &[Descriptor]) -> Result<Outcome> {
    let mut device = target.device()?;
    device.frame(kind::IN, 0);
    for (index, descriptor) in (0..).zip(descriptors) {
        device.ring(0).set_descriptor(index, descriptor);
    }
    device.offer(0, 0)?;
    device.outcome(0)
}

/// The header of a correct read as a descriptor with these flags and successor.
fn header(target: &Target<'_>, flags: u16, next: u16) -> Result<Descriptor> {
    let (piece, _) = target.device()?.frame(kind::IN, 0);
    Ok(Descriptor { address: piece.address, length: piece.length, flags, next })
}

fn descriptor_loop(target: &Target<'_>) -> Result<()> {
    let first = header(target, flag::NEXT, 1)?;
    let back = Descriptor { flags: flag::NEXT | flag::WRITE, length: 512, next: 1, ..first };
    refused(outcome_of(target, &[first, back])?)?;
    let itself = Descriptor { next: 0, ..first };
    refused(outcome_of(target, &[itself])?)
}

fn next_out_of_range(target: &Target<'_>) -> Result<()> {
    for next in [64, 65, u16::MAX] {
        refused(outcome_of(target, &[header(target, flag::NEXT, next)?])?)?;
    }
    Ok(())
}

fn head_out_of_range(target: &Target<'_>) -> Result<()> {
    for head in [64, 1000, u16::MAX] {
        let mut device = target.device()?;
        device.frame(kind::IN, 0);
        device.offer(0, head)?;
        ensure!(device.outcome(0)? == Outcome::Ended, "head {head} came back");
    }
    Ok(())
}

fn available_index_jump(target: &Target<'_>) -> Result<()> {
    for jump in [65, 1000, 40_000] {
        let mut device = target.device()?;
        device.ring_mut(0).set_available_index(jump);
        device.ring(0).kick()?;
        ensure!(device.outcome(0)? == Outcome::Ended, "a jump by {jump} was taken");
    }
    Ok(())
}

/// Data outside memory, half outside it, and at addresses that wrap.
fn data_outside_memory(target: &Target<'_>) -> Result<()> {
    for form in [Form::Direct, Form::Indirect] {
        for (kind, flags) in [(kind::IN, flag::WRITE), (kind::OUT, 0)] {
            let device = target.device()?;
            let last = device.regions()[1];
            let end = last.guest_address + last.size;
            drop(device);
            for (address, length) in [(NOWHERE, 512), (end - 256, 512), (u64::MAX - 255, 512)] {
                let mut device = target.device()?;
                let (header, status) = device.frame(kind, 1000);
                let pieces = [header, Piece { address, length, flags }, status];
                refused(device.execute(0, &pieces, form)?)
                    .with_context(|| format!("type {kind}, data at {address:#x}, {form:?}"))?;
            }
        }
    }
    Ok(())
}

fn header_outside_memory(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::IN, 0);
    let pieces = [Piece { address: NOWHERE, ..header }, status];
    refused(device.execute(0, &pieces, Form::Direct)?)
}

fn status_outside_memory(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::FLUSH, 0);
    let pieces = [header, Piece { address: NOWHERE, ..status }];
    refused(device.execute(0, &pieces, Form::Direct)?)
}

/// A huge piece: 4 GiB less one byte.
fn data_longer_than_memory(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::IN, 0);
    let data = device.data(0, u32::MAX, flag::WRITE);
    refused(device.execute(0, &[header, data, status], Form::Direct)?)
}

/// Indirect tables of odd size, nested, empty, outside memory, or with a successor.
fn spoilt_indirect_tables(target: &Target<'_>) -> Result<()> {
    let device = target.device()?;
    let table = device.data(0, 0, 0).address;
    drop(device);
    let indirect = |address, length, flags| Descriptor { address, length, flags, next: 1 };
    let spoilt = [
        ("of 17 bytes", indirect(table, 17, flag::INDIRECT)),
        ("of 0 bytes", indirect(table, 0, flag::INDIRECT)),
        ("of 4 GiB", indirect(table, u32::MAX - 15, flag::INDIRECT)),
        ("nowhere", indirect(NOWHERE, 48, flag::INDIRECT)),
        ("with a successor", indirect(table, 48, flag::INDIRECT | flag::NEXT)),
    ];
    for (what, descriptor) in spoilt {
        refused(outcome_of(target, &[descriptor])?).with_context(|| format!("a table {what}"))?;
    }
    Ok(())
}

fn nested_indirect_table(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    device.frame(kind::IN, 0);
    let place = device.data(0, 16, 0).address;
    let itself = Descriptor { address: place, length: 16, flags: flag::INDIRECT, next: 0 };
    device.put(0, &itself.bytes());
    device.ring(0).set_descriptor(0, &itself);
    device.offer(0, 0)?;
    refused(device.outcome(0)?)
}

/// A loop inside an indirect table, where the ring's size does not bound it.
fn loop_in_an_indirect_table(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, _) = device.frame(kind::IN, 0);
    let place = device.data(4096, 0, 0).address;
    let data = device.data(8192, 512, flag::WRITE);
    let descriptor = |piece: Piece, next| {
        let Piece { address, length, flags } = piece;
        Descriptor { address, length, flags: flags | flag::NEXT, next }
    };
    device.put(4096, &descriptor(header, 1).bytes());
    device.put(4096 + 16, &descriptor(data, 1).bytes());
    let table = Descriptor { address: place, length: 32, flags: flag::INDIRECT, next: 0 };
    device.ring(0).set_descriptor(0, &table);
    device.offer(0, 0)?;
    refused(device.outcome(0)?)
}

/// The same head again and again without waiting: each comes back, or the session ends.
fn one_head_offered_many_times(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::IN, 0);
    let data = device.data(0, 512, flag::WRITE);
    device.ring(0).set_chain(0, &[header, data, status]);
    for _ in 0..32 {
        device.ring_mut(0).offer(0);
    }
    device.ring(0).kick()?;
    for _ in 0..32 {
        if device.wait_used(0)?.is_none() {
            break;
        }
    }
    Ok(())
}

/// The ring's memory is cut off below the server: a touch is a SIGBUS, which must end the session alone.
fn memory_file_truncated(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::IN, 0);
    let data = device.data(0, 512, flag::WRITE);
    device.ring(0).set_chain(0, &[header, data, status]);
    device.ring_mut(0).offer(0);
    truncate_memory(&device)?;
    device.ring(0).kick()?;
    device.front_end.wait_for_end()
}

/// Shortens the memfd through its path in /proc, as another process would.
pub(super) fn truncate_memory(device: &RawDevice) -> Result<()> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", device.memory.file().as_raw_fd());
    let file = std::fs::File::options().write(true).open(path).context("open the memfd")?;
    file.set_len(0).context("truncate the memfd")
}

/// An interrupt descriptor whose counter is full: whoever writes to it unprepared sleeps for ever.
fn call_descriptor_that_is_full(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
    device.send_ring_fd(request::SET_VRING_CALL, 0, full.as_fd())?;
    let (header, status) = device.frame(kind::IN, 0);
    let data = device.data(0, 512, flag::WRITE);
    device.ring(0).set_chain(0, &[header, data, status]);
    device.offer(0, 0)
}

/// The same, and the front end makes writers sleep again: the mode is shared. Whoever serves the ring must not be
/// among them, because others wait for that thread.
fn call_descriptor_that_blocks(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
    for queue in 0..2 {
        device.send_ring_fd(request::SET_VRING_CALL, queue, full.as_fd())?;
    }
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty())?;
    for queue in 0..2 {
        let (header, status) = device.frame(kind::IN, 0);
        let data = device.data(0, 512, flag::WRITE);
        device.ring(queue).set_chain(0, &[header, data, status]);
        device.ring(queue).set_used_event(0);
        device.ring_mut(queue).offer(0);
        device.ring(queue).kick()?;
        poll_until("the request", REQUEST_LIMIT, || {
            Ok((device.ring(queue).used_index() == 1).then_some(()))
        })?;
    }
    // The iothreads are past the interrupt when they serve somebody else; whoever sleeps there stays.
    target.others_go_on()?;
    ensure!(device.stop_ring(0)? == 1 && device.stop_ring(1)? == 1, "not both were served");
    Ok(())
}

/// An error descriptor in the same state, and a fault that is to be told by it.
fn error_descriptor_that_blocks(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
    let again = device.stop_ring(0)?;
    device.send_ring_fd(request::SET_VRING_ERR, 0, full.as_fd())?;
    device.start_ring(0, again)?;
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty())?;
    device.offer(0, u16::MAX)?;
    device.front_end.wait_for_end()?;
    target.others_go_on()
}

/// Kicks in a storm with nothing to do.
fn kicks_without_requests(target: &Target<'_>) -> Result<()> {
    let device = target.device()?;
    for _ in 0..20_000 {
        device.ring(0).kick()?;
    }
    Ok(())
}

/// The ring is set up anew while it runs, and with another size.
fn live_ring_changed(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let state =
        |value: u32| -> Vec<u8> { [0, value].iter().flat_map(|word| word.to_le_bytes()).collect() };
    for (message, value) in [(request::SET_VRING_NUM, 16), (request::SET_VRING_BASE, 7)] {
        if device.front_end.tell(message, &state(value), &[])? == Ack::Ended {
            return Ok(());
        }
    }
    let ring = RawRing::new(&device.memory, 512 << 10, 16)?;
    let addresses = ring.offsets().map(|offset| device.user_address(offset));
    device.tell_ring_addresses(0, addresses)?;
    device.offer(0, 0)
}

/// Requests are in flight when the client goes.
fn gone_in_mid_request(target: &Target<'_>) -> Result<()> {
    for round in 0..20 {
        let mut device = target.device()?;
        let kind = if round % 2 == 0 { kind::IN } else { kind::OUT };
        let flags = if kind == kind::IN { flag::WRITE } else { 0 };
        let (header, status) = device.frame(kind, 1024);
        let data = device.data(0, 256 << 10, flags);
        for queue in 0..2 {
            let ring = device.ring_mut(queue);
            for slot in 0..20 {
                ring.set_chain(slot * 3, &[header, data, status]);
                ring.offer(slot * 3);
            }
            ring.kick()?;
        }
    }
    Ok(())
}

attacks! {
    both {
    rings_outside_memory,
    descriptor_loop,
    next_out_of_range,
    head_out_of_range,
    available_index_jump,
    data_outside_memory,
    header_outside_memory,
    status_outside_memory,
    data_longer_than_memory,
    spoilt_indirect_tables,
    loop_in_an_indirect_table,
    one_head_offered_many_times,
    kicks_without_requests,
    live_ring_changed,
    gone_in_mid_request,
    }
    ringloom {
        call_descriptor_that_blocks,
        call_descriptor_that_is_full,
        error_descriptor_that_blocks,
        memory_file_truncated,
        nested_indirect_table,
        rings_at_odd_addresses,
        rings_half_outside_memory,
    }
}
