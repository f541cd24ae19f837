//! Attacks with requests that a correct chain carries: wrong ranges, types, sizes and directions.

use anyhow::{Context, Result, ensure};
use testkit::rawring::{BlockRequest, Form, Outcome, Piece, RawDevice, RawShape, flag, kind};

use super::{Target, VICTIM_SECTORS, attacks};

/// One request with one piece of data.
fn one(device: &mut RawDevice, kind: u32, sector: u64, data: Piece) -> Result<Outcome> {
    device.request(0, &BlockRequest { kind, sector, data: vec![data], form: Form::Direct })
}

/// After a refused request the same session must still read.
fn session_lives(device: &mut RawDevice) -> Result<()> {
    let data = device.data(0, 512, flag::WRITE);
    let outcome = one(device, kind::IN, 0, data)?;
    ensure!(outcome.is_ok(), "a correct read afterwards: {outcome:?}");
    Ok(())
}

#[track_caller]
fn io_error(outcome: Outcome) -> Result<()> {
    ensure!(outcome.is_io_error(), "not IOERR: {outcome:?}");
    Ok(())
}

/// Ranges that begin or end behind the disk, or wrap.
fn request_exceeds_the_disk(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let sectors =
        [VICTIM_SECTORS, VICTIM_SECTORS - 1, u64::MAX, u64::MAX / 512, u64::MAX / 512 + 1, 1 << 55];
    for sector in sectors {
        for (kind, flags) in [(kind::IN, flag::WRITE), (kind::OUT, 0)] {
            let data = device.data(0, 1024, flags);
            let outcome = one(&mut device, kind, sector, data)?;
            io_error(outcome).with_context(|| format!("type {kind} at sector {sector}"))?;
        }
    }
    session_lives(&mut device)
}

fn unknown_request_type(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for kind in [2, 99, 0x4000_0000, u32::MAX] {
        let data = device.data(0, 512, flag::WRITE);
        let outcome = one(&mut device, kind, 0, data)?;
        ensure!(outcome.is_unsupported(), "type {kind}: {outcome:?}");
    }
    session_lives(&mut device)
}

/// Nothing the device could write a status to.
fn missing_status_byte(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, _) = device.frame(kind::OUT, 1000);
    let data = device.data(0, 512, 0);
    let outcome = device.execute(0, &[header, data], Form::Direct)?;
    ensure!(!outcome.is_ok(), "a request without status: {outcome:?}");
    let mut device = target.device()?;
    let (header, _) = device.frame(kind::FLUSH, 0);
    let outcome = device.execute(0, &[header], Form::Direct)?;
    ensure!(!outcome.is_ok(), "a flush without status: {outcome:?}");
    Ok(())
}

fn header_too_short(target: &Target<'_>) -> Result<()> {
    for length in [0, 1, 15] {
        let mut device = target.device()?;
        let (header, status) = device.frame(kind::IN, 0);
        let outcome = device.execute(0, &[Piece { length, ..header }, status], Form::Direct)?;
        ensure!(!outcome.is_ok(), "a header of {length} bytes: {outcome:?}");
    }
    Ok(())
}

/// Only device-writable pieces, so there is no header at all.
fn no_header(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (_, status) = device.frame(kind::IN, 0);
    let outcome = device.execute(0, &[status], Form::Direct)?;
    ensure!(!outcome.is_ok(), "{outcome:?}");
    Ok(())
}

/// A readable piece behind a writable one (virtio 1.2, section 2.7.4.2 forbids it).
fn pieces_in_wrong_order(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    let (header, status) = device.frame(kind::OUT, 1000);
    let data = device.data(0, 512, 0);
    let outcome = device.execute(0, &[status, header, data], Form::Direct)?;
    ensure!(!outcome.is_ok(), "{outcome:?}");
    Ok(())
}

fn data_is_no_multiple_of_a_sector(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for length in [1, 511, 513, 1000] {
        for (kind, flags) in [(kind::IN, flag::WRITE), (kind::OUT, 0)] {
            let data = device.data(0, length, flags);
            let outcome = one(&mut device, kind, 1000, data)?;
            io_error(outcome).with_context(|| format!("type {kind}, {length} bytes"))?;
        }
    }
    session_lives(&mut device)
}

fn write_to_a_read_only_disk(target: &Target<'_>) -> Result<()> {
    let mut device = RawDevice::connect(target.read_only, RawShape::default())?;
    ensure!(device.features & testkit::rawring::feature::BLK_RO != 0, "RO is not offered");
    device.put(0, &[0x77; 512]);
    let data = device.data(0, 512, 0);
    io_error(one(&mut device, kind::OUT, 0, data)?).context("write")?;
    device.put(4096, &range(0, 8, 0));
    let data = device.data(4096, 16, 0);
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        let outcome = one(&mut device, kind, 0, data)?;
        ensure!(outcome.is_io_error() || outcome.is_unsupported(), "type {kind}: {outcome:?}");
    }
    let data = device.data(0, 512, flag::WRITE);
    ensure!(one(&mut device, kind::IN, 0, data)?.is_ok(), "a read of a read-only disk");
    ensure!(device.get(0, 512) != [0x77; 512], "the write went through");
    Ok(())
}

/// The data of a discard or write-zeroes request: sector, number of sectors, flags.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

/// A discard or write-zeroes request with this data, of this many bytes.
fn ranged(device: &mut RawDevice, kind: u32, bytes: &[u8]) -> Result<Outcome> {
    device.put(0, bytes);
    let length = u32::try_from(bytes.len()).context("length")?;
    let data = device.data(0, length, 0);
    one(device, kind, 0, data)
}

fn ranges_exceed_the_disk(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        for (sector, sectors) in [(VICTIM_SECTORS, 1), (VICTIM_SECTORS - 1, 2), (u64::MAX, 1)] {
            let outcome = ranged(&mut device, kind, &range(sector, sectors, 0))?;
            io_error(outcome).with_context(|| format!("type {kind}, {sectors} at {sector}"))?;
        }
    }
    session_lives(&mut device)
}

fn more_sectors_than_allowed(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        let outcome = ranged(&mut device, kind, &range(1000, u32::MAX, 0))?;
        io_error(outcome).with_context(|| format!("type {kind}"))?;
    }
    session_lives(&mut device)
}

/// Unknown flags, and UNMAP where it means nothing (virtio 1.2, section 5.2.6.2).
fn flags_not_allowed(target: &Target<'_>) -> Result<()> {
    let mut device = target.device()?;
    for (kind, flags) in [(kind::DISCARD, 1), (kind::DISCARD, 2), (kind::WRITE_ZEROES, 2)] {
        let outcome = ranged(&mut device, kind, &range(1000, 8, flags))?;
        ensure!(outcome.is_unsupported(), "type {kind}, flags {flags}: {outcome:?}");
    }
    session_lives(&mut device)
}

fn range_data_of_wrong_size(target: &Target<'_>) -> Result<()> {
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        for length in [0, 1, 15, 17] {
            let mut device = target.device()?;
            let outcome = ranged(&mut device, kind, &vec![0; length])?;
            ensure!(!outcome.is_ok(), "type {kind}, {length} bytes: {outcome:?}");
        }
    }
    Ok(())
}

/// Many ranges in one request, more than the configuration space allows.
fn too_many_ranges(target: &Target<'_>) -> Result<()> {
    for kind in [kind::DISCARD, kind::WRITE_ZEROES] {
        let mut device = target.device()?;
        let outcome = ranged(&mut device, kind, &range(1000, 8, 0).repeat(4000))?;
        ensure!(!outcome.is_ok(), "type {kind}: {outcome:?}");
    }
    Ok(())
}

fn id_buffer_of_any_size(target: &Target<'_>) -> Result<()> {
    for length in [0, 1, 19, 20, 21, 4096] {
        let mut device = target.device()?;
        device.put(0, &[0xee; 4097]);
        let data = device.data(0, length, flag::WRITE);
        one(&mut device, kind::GET_ID, 0, data)?;
        let end = usize::try_from(length).context("length")?;
        ensure!(device.get(end, 1) == [0xee], "written behind {length} bytes");
    }
    Ok(())
}

attacks! {
    both {
    request_exceeds_the_disk,
    unknown_request_type,
    pieces_in_wrong_order,
    data_is_no_multiple_of_a_sector,
    write_to_a_read_only_disk,
    ranges_exceed_the_disk,
    more_sectors_than_allowed,
    flags_not_allowed,
    range_data_of_wrong_size,
    too_many_ranges,
    id_buffer_of_any_size,
    }
    ringloom {
        header_too_short,
        missing_status_byte,
        no_header,
    }
}
