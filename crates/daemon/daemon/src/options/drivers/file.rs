//! The drivers `file` and `host_device`.

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::{AioEngine, Driver, Locking};

const LATER: &[&str] = &["aio-max-batch", "drop-cache", "pr-manager", "x-check-cache-dropped"];

/// `driver=file`.
pub(super) const REGULAR: Entry = Entry {
    name: "file",
    keys: Keys {
        of: "--blockdev driver=file",
        supported: &[BASE, &["filename", "aio", "locking"]],
        later: &[BASE_LATER, LATER],
    },
    read: regular,
};

/// `driver=host_device`.
pub(super) const HOST_DEVICE: Entry = Entry {
    name: "host_device",
    keys: Keys {
        of: "--blockdev driver=host_device",
        supported: &[BASE, &["filename", "aio", "locking"]],
        later: &[BASE_LATER, LATER],
    },
    read: host_device,
};

fn regular(reader: &mut Reader) -> Result<Driver, Fault> {
    Ok(Driver::File {
        filename: filename(reader)?.into(),
        aio: aio(reader)?,
        locking: locking(reader)?,
    })
}

fn host_device(reader: &mut Reader) -> Result<Driver, Fault> {
    Ok(Driver::HostDevice {
        filename: filename(reader)?.into(),
        aio: aio(reader)?,
        locking: locking(reader)?,
    })
}

fn filename(reader: &mut Reader) -> Result<String, Fault> {
    let filename = reader.fields.required_text("filename")?;
    if filename.is_empty() {
        return Err(Fault::EmptyPath { what: "filename" });
    }
    Ok(filename)
}

fn aio(reader: &mut Reader) -> Result<Option<AioEngine>, Fault> {
    match reader.fields.choice("aio", &["threads", "native", "io_uring"])? {
        None => Ok(None),
        Some("threads") => Ok(Some(AioEngine::Threads)),
        Some("native") if !reader.common.cache_direct => Err(Fault::NativeBuffered),
        Some("native") => Ok(Some(AioEngine::Native)),
        Some(_) => Ok(Some(AioEngine::IoUring)),
    }
}

fn locking(reader: &mut Reader) -> Result<Locking, Fault> {
    Ok(match reader.fields.choice("locking", &["auto", "on", "off"])? {
        Some("on") => Locking::On,
        Some("off") => Locking::Off,
        Some(_) | None => Locking::Automatic,
    })
}
