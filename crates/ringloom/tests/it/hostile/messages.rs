//! Attacks with vhost-user messages.

use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use testkit::rawring::{Ack, FrontEnd, RawDevice, RawShape, Region, request};
use testkit::rng::Rng;

use super::{Target, attacks, shape};

/// A header of twelve bytes: request, flags, size.
fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Sends bytes at the start of a session, which the server must end.
fn ends_the_session(target: &Target<'_>, bytes: &[u8]) -> Result<()> {
    let front_end = FrontEnd::connect(target.socket)?;
    front_end.send_bytes(bytes, &[])?;
    front_end.wait_for_end()
}

/// The server must not go on as if the message were good: it answers with an error or ends the session. The peer
/// acknowledges some messages and then ends the session.
fn refused(front_end: &FrontEnd, ack: Ack) -> Result<()> {
    if ack == Ack::Done {
        front_end.wait_for_end().context("the server agreed")?;
    }
    Ok(())
}

fn negotiated(target: &Target<'_>) -> Result<RawDevice> {
    RawDevice::negotiated(target.socket, shape())
}

fn tell(device: &RawDevice, request: u32, words: &[u32]) -> Result<Ack> {
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    device.front_end.tell(request, &payload, &[])
}

fn garbage(target: &Target<'_>) -> Result<()> {
    for seed in 0..20 {
        let mut bytes = [0; 256];
        Rng::new(seed).fill(&mut bytes);
        ends_the_session(target, &bytes).with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

fn half_a_header_then_gone(target: &Target<'_>) -> Result<()> {
    FrontEnd::connect(target.socket)?.send_bytes(&header(request::GET_FEATURES, 1, 0)[..6], &[])
}

fn half_a_payload_then_gone(target: &Target<'_>) -> Result<()> {
    let mut bytes = header(request::SET_FEATURES, 1, 8);
    bytes.extend([0; 3]);
    FrontEnd::connect(target.socket)?.send_bytes(&bytes, &[])
}

fn connected_then_gone(target: &Target<'_>) -> Result<()> {
    for _ in 0..50 {
        FrontEnd::connect(target.socket)?;
    }
    Ok(())
}

/// The well-behaved client must go on while this one keeps its half message for itself.
fn half_a_message_that_stays(target: &Target<'_>) -> Result<()> {
    let front_end = FrontEnd::connect(target.socket)?;
    front_end.send_bytes(&header(request::SET_FEATURES, 1, 8)[..9], &[])?;
    let other = RawDevice::connect(target.read_only, shape())?;
    drop(other);
    drop(front_end);
    Ok(())
}

fn huge_size_field(target: &Target<'_>) -> Result<()> {
    for size in [u32::MAX, 1 << 31, 1 << 20] {
        ends_the_session(target, &header(request::SET_FEATURES, 1, size))?;
    }
    Ok(())
}

fn wrong_version(target: &Target<'_>) -> Result<()> {
    for flags in [0, 2, 3] {
        ends_the_session(target, &header(request::GET_FEATURES, flags, 0))
            .with_context(|| format!("flags {flags}"))?;
    }
    Ok(())
}

fn unknown_request(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    refused(&device.front_end, device.front_end.tell(200, &[], &[])?)
}

fn payload_of_wrong_size(target: &Target<'_>) -> Result<()> {
    for size in [0, 4, 7, 9, 40] {
        let front_end = negotiated(target)?.front_end;
        let ack = front_end.tell(request::SET_VRING_NUM, &vec![0; size], &[])?;
        refused(&front_end, ack).with_context(|| format!("SET_VRING_NUM with {size} bytes"))?;
    }
    Ok(())
}

fn queue_out_of_range(target: &Target<'_>) -> Result<()> {
    for request in [request::SET_VRING_NUM, request::SET_VRING_BASE, request::SET_VRING_ENABLE] {
        for queue in [2, 256, u32::MAX] {
            let device = negotiated(target)?;
            let ack = tell(&device, request, &[queue, 1])?;
            refused(&device.front_end, ack)
                .with_context(|| format!("message {request}, queue {queue}"))?;
        }
    }
    Ok(())
}

fn far_queue_out_of_range(target: &Target<'_>) -> Result<()> {
    for queue in [100_000, u32::MAX] {
        let device = negotiated(target)?;
        refused(&device.front_end, tell(&device, request::SET_VRING_NUM, &[queue, 64])?)?;
    }
    Ok(())
}

fn ring_size_not_allowed(target: &Target<'_>) -> Result<()> {
    for size in [0, 3, 65, 32_769, u32::MAX] {
        let device = negotiated(target)?;
        let ack = tell(&device, request::SET_VRING_NUM, &[0, size])?;
        refused(&device.front_end, ack).with_context(|| format!("ring size {size}"))?;
    }
    Ok(())
}

fn memory_table_without_files(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    let table = Region::table(&device.regions());
    refused(&device.front_end, device.front_end.tell(request::SET_MEM_TABLE, &table, &[])?)
}

fn memory_table_with_absurd_count(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    let mut table = Region::table(&device.regions());
    table[..4].copy_from_slice(&9999_u32.to_le_bytes());
    refused(
        &device.front_end,
        device.front_end.tell(request::SET_MEM_TABLE, &table, &[device.memory.file()])?,
    )
}

/// Sizes and addresses that wrap, overlap or are nothing.
fn regions_that_cannot_be(target: &Target<'_>) -> Result<()> {
    let good = negotiated(target)?.regions()[0];
    let bad = [
        Region { size: 0, ..good },
        Region { guest_address: u64::MAX - 4095, size: 1 << 20, ..good },
        Region { user_address: u64::MAX - 4095, size: 1 << 20, ..good },
        Region { size: u64::MAX, ..good },
        Region { file_offset: u64::MAX - 4095, ..good },
    ];
    for region in bad {
        let device = negotiated(target)?;
        let fds = [device.memory.file()];
        let ack = device.front_end.tell(request::SET_MEM_TABLE, &Region::table(&[region]), &fds)?;
        refused(&device.front_end, ack)
            .with_context(|| format!("SET_MEM_TABLE with {region:?}"))?;
        let device = negotiated(target)?;
        let fds = [device.memory.file()];
        let ack = device.front_end.tell(request::ADD_MEM_REG, &region.single(), &fds)?;
        refused(&device.front_end, ack).with_context(|| format!("ADD_MEM_REG with {region:?}"))?;
    }
    Ok(())
}

/// What the server makes of it is its own affair, as long as it lives.
fn overlapping_regions(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    let region = device.regions()[0];
    let table = Region::table(&[region, region]);
    let fds = [device.memory.file(), device.memory.file()];
    device.front_end.tell(request::SET_MEM_TABLE, &table, &fds).map(drop)
}

/// The same one by one, beside rings that are served.
fn overlapping_regions_one_by_one(target: &Target<'_>) -> Result<()> {
    let good = target.device()?.regions()[0];
    for (shift, user_shift) in [(0, 0), (4096, 1 << 30), (1 << 30, 4096)] {
        let device = target.device()?;
        let region = Region {
            guest_address: good.guest_address + shift,
            user_address: device.regions()[0].user_address + user_shift,
            ..good
        };
        let fds = [device.memory.file()];
        device.front_end.tell(request::ADD_MEM_REG, &region.single(), &fds)?;
    }
    target.others_go_on()
}

/// A region longer than its file: touching the end of it would be a SIGBUS.
fn region_longer_than_its_file(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    let region = Region { size: 1 << 30, ..device.regions()[0] };
    let fds = [device.memory.file()];
    refused(
        &device.front_end,
        device.front_end.tell(request::SET_MEM_TABLE, &Region::table(&[region]), &fds)?,
    )
}

fn removal_of_an_unknown_region(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::connect(target.socket, shape())?;
    let region = Region { guest_address: 0x99_0000_0000, ..device.regions()[0] };
    refused(&device.front_end, device.front_end.tell(request::REM_MEM_REG, &region.single(), &[])?)
}

/// Rings are used after their memory has been taken away.
fn memory_removed_under_a_ring(target: &Target<'_>) -> Result<()> {
    let mut device = RawDevice::connect(target.socket, shape())?;
    let region = device.regions()[0];
    if device.front_end.tell(request::REM_MEM_REG, &region.single(), &[])? == Ack::Done {
        device.offer(0, 0)?;
    }
    Ok(())
}

/// A ring is set up and used without any memory. Where the server notices is its own affair, as long as it lives.
fn ring_used_without_memory(target: &Target<'_>) -> Result<()> {
    let mut device = negotiated(target)?;
    if device.start_ring(0, 0).is_ok() {
        device.frame(0, 0);
        device.offer(0, 0)?;
        device.stop_ring(0).ok();
    }
    Ok(())
}

fn kick_without_a_descriptor(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::connect(target.socket, shape())?;
    // Bit 8 says that there is no descriptor, which asks for polling; without it the message lies.
    refused(
        &device.front_end,
        device.front_end.tell(request::SET_VRING_KICK, &0_u64.to_le_bytes(), &[])?,
    )
}

/// A descriptor that is no eventfd: the server must neither block on it nor spin.
fn kick_is_a_file(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::connect(target.socket, shape())?;
    let file = std::fs::File::open("/dev/zero").context("open /dev/zero")?;
    let payload = 0_u64.to_le_bytes();
    device.front_end.tell(request::SET_VRING_KICK, &payload, &[file.as_fd()])?;
    Ok(())
}

fn more_descriptors_than_asked_for(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::connect(target.socket, shape())?;
    let file = device.memory.file();
    let fds = [file; 8];
    device.front_end.tell(request::SET_FEATURES, &device.features.to_le_bytes(), &fds)?;
    Ok(())
}

fn configuration_beyond_its_end(target: &Target<'_>) -> Result<()> {
    let device = negotiated(target)?;
    let mut payload: Vec<u8> =
        [0x0fff_ffff_u32, 0xffff, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    payload.extend([0; 64]);
    device.front_end.send(request::GET_CONFIG, &payload, &[])?;
    // Either an empty reply or the end of the session.
    if let Some(reply) = device.front_end.receive(request::GET_CONFIG)? {
        ensure!(reply.len() <= payload.len(), "a reply of {} bytes", reply.len());
    }
    Ok(())
}

/// Everything at once and in the wrong order, then gone without waiting for any answer.
fn a_burst_of_messages_then_gone(target: &Target<'_>) -> Result<()> {
    let mut rng = Rng::new(0x41);
    for _ in 0..20 {
        let front_end = FrontEnd::connect(target.socket)?;
        for _ in 0..30 {
            let kind = u32::try_from(rng.below(45)).context("a request type")?;
            let mut payload = vec![0; rng.index(6) * 8];
            if rng.one_in(2) {
                rng.fill(&mut payload);
            }
            front_end.send(kind, &payload, &[])?;
        }
    }
    Ok(())
}

/// Features that were never offered.
fn features_not_offered(target: &Target<'_>) -> Result<()> {
    let device = RawDevice::negotiated(target.socket, RawShape::default())?;
    refused(
        &device.front_end,
        device.front_end.tell(request::SET_FEATURES, &u64::MAX.to_le_bytes(), &[])?,
    )
}

attacks! {
    both {
    garbage,
    half_a_header_then_gone,
    half_a_payload_then_gone,
    connected_then_gone,
    half_a_message_that_stays,
    huge_size_field,
    unknown_request,
    memory_table_without_files,
    overlapping_regions,
    removal_of_an_unknown_region,
    memory_removed_under_a_ring,
    ring_used_without_memory,
    kick_without_a_descriptor,
    kick_is_a_file,
    more_descriptors_than_asked_for,
    configuration_beyond_its_end,
    }
    ringloom {
        far_queue_out_of_range,
        features_not_offered,
        memory_table_with_absurd_count,
        overlapping_regions_one_by_one,
        payload_of_wrong_size,
        queue_out_of_range,
        region_longer_than_its_file,
        regions_that_cannot_be,
        ring_size_not_allowed,
        wrong_version,
        a_burst_of_messages_then_gone,
    }
}
