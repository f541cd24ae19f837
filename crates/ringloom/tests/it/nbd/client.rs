//! A client of NBD that knows what a test needs: GO, reads, writes and flushes with simple replies, many at a time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
}

/// A connection in its transmission.
pub(super) struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects, and chooses the export.
    pub(super) fn connect(socket: &Path, export: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut client = Self { stream };
        let greeting: [u8; 18] = client.array()?;
        ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "{greeting:?}");
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        let bytes = u32::try_from(export.len())?;
        hello.extend((bytes + 6).to_be_bytes());
        hello.extend(bytes.to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend(0_u16.to_be_bytes());
        client.stream.write_all(&hello)?;
        loop {
            ensure!(u64::from_be_bytes(client.array()?) == REPLY_MAGIC, "no reply to an option");
            let _option: [u8; 4] = client.array()?;
            let kind = u32::from_be_bytes(client.array()?);
            let count = u32::from_be_bytes(client.array()?);
            let mut data = vec![0; usize::try_from(count)?];
            client.stream.read_exact(&mut data)?;
            match kind {
                REP_ACK => return Ok(client),
                REP_INFO => {}
                error => anyhow::bail!("GO: {error:#x}: {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    /// Sends a request; `cookie` comes back with its reply.
    pub(super) fn send(
        &mut self,
        command: Command,
        cookie: u64,
        (offset, count): (u64, u32),
        payload: &[u8],
    ) -> Result<()> {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend((command as u16).to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        bytes.extend(payload);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// The cookie of the next reply, whose request went well.
    pub(super) fn reply(&mut self) -> Result<u64> {
        ensure!(u32::from_be_bytes(self.array()?) == SIMPLE_REPLY_MAGIC, "no simple reply");
        let error = u32::from_be_bytes(self.array()?);
        let cookie = u64::from_be_bytes(self.array()?);
        ensure!(error == 0, "request {cookie}: error {error}");
        Ok(cookie)
    }

    /// The data of the read whose reply came last.
    pub(super) fn data(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; count];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the server is gone")?;
        Ok(bytes)
    }
}
