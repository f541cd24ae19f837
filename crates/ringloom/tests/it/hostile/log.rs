//! Dirty logs that are too small, cut off, taken back or no file at all.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use testkit::rawring::{
    Ack, BlockRequest, DirtyLog, Form, RawDevice, feature, flag, kind, request,
};

use super::{Target, attacks};

fn end() -> u64 {
    RawDevice::guest_end()
}

fn read(device: &mut RawDevice) -> Result<testkit::rawring::Outcome> {
    let data = vec![device.data(0, 4096, flag::WRITE)];
    device.request(0, &BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct })
}

/// The log's file gets shorter while pages are marked.
fn log_truncated(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let log = DirtyLog::new(end())?;
    device.start_log(&log)?;
    ensure!(read(&mut device)?.is_ok(), "a read with the log whole");
    let path = format!("/proc/self/fd/{}", log.file().as_raw_fd());
    let file = std::fs::File::options().write(true).open(path).context("open the log")?;
    file.set_len(0).context("truncate the log")?;
    read(&mut device)?;
    device.front_end.wait_for_end()
}

/// The log has no bit for the last pages of memory.
fn log_too_small(target: &Target<'_>) -> Result<()> {
    let device = target.device()?;
    let log = DirtyLog::new(end() / 2)?;
    log.give_to(&device.front_end)?;
    let features = device.features | feature::LOG_ALL;
    let ack = device.front_end.tell(request::SET_FEATURES, &features.to_le_bytes(), &[])?;
    ensure!(ack != Ack::Done, "a log that is too small was taken");
    device.front_end.wait_for_end()
}

/// Logs come and go while the disk is in use.
fn logs_that_come_and_go(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for _ in 0..20 {
        let log = DirtyLog::new(end())?;
        device.start_log(&log)?;
        ensure!(read(&mut device)?.is_ok(), "a read with a new log");
        device.stop_log()?;
        log.take();
    }
    Ok(())
}

/// Sizes and places that no log can have, and descriptors that cannot be mapped.
fn logs_that_cannot_be(target: &Target<'_>) -> Result<()> {
    let log = DirtyLog::new(end())?;
    for (bytes, offset) in [(0, 0), (u64::MAX, 0), (4096, u64::MAX), (4096, 1 << 40), (1 << 60, 0)]
    {
        let device = target.device()?;
        let payload = [bytes, offset].map(u64::to_le_bytes).concat();
        device.front_end.send(request::SET_LOG_BASE, &payload, &[log.file()])?;
        device.front_end.wait_for_end().with_context(|| format!("{bytes} bytes at {offset}"))?;
    }
    let payload = [4096_u64, 0].map(u64::to_le_bytes).concat();
    let device = target.device()?;
    device.front_end.send(request::SET_LOG_BASE, &payload, &[device.ring(0).kick_fd()])?;
    device.front_end.wait_for_end().context("an eventfd as log")?;
    let device = target.device()?;
    device.front_end.send(request::SET_LOG_BASE, &payload, &[])?;
    device.front_end.wait_for_end().context("no file as log")
}

attacks! {
    both {
    }
    ringloom {
        log_truncated,
        log_too_small,
        logs_that_come_and_go,
        logs_that_cannot_be,
    }
}
