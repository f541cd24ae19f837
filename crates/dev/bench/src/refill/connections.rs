//! Self-refilling NBD connections, whose clients are on the same threads; and fio as a client of a server.
//!
//! A [`RefillingConnection`] is a connection with its client: after each turn the client takes the replies off its end of
//! the socket and sends as many requests. The data path is the shipped one, sockets and all.
//!
//! Threads: a client travels with its connection; only the number of answers is shared.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use block::{Capacity, Durability, Node, Outcome, SourceRequestSlot};
use nbd::wire::{command, reply_magic, request};
use nbd::{
    BlockSizes, ConnectionEnd, ExportOffer, HeaderStyle, MetaContexts, NbdConnection,
    NbdConnectionSetup, NbdTransport, ProtocolString, TransmissionFlags, TransmissionSettings,
};
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, SleepDecision, StreamTransfer,
};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Answers, RAMP, Stage};
use crate::clock;
use crate::counters::cpu_ns;
use crate::disks::DISK_BYTES;
use crate::measure::{Values, as_f64};
use crate::results::Metric;

const DEPTH: usize = 16;
const BLOCK: u32 = 4096;
const REPLY_BYTES: usize = 16 + 4096;

/// A connection whose client is on the same thread.
#[derive(Debug)]
struct RefillingConnection {
    connection: NbdConnection,
    client: Client,
    answers: Arc<Answers>,
}

/// Reads blocks at random, with simple replies.
#[derive(Debug)]
struct Client {
    socket: UnixStream,
    seed: u64,
    requests: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of replies that have come, less those of whole ones.
    partial: usize,
}

impl Client {
    fn new(socket: UnixStream, seed: u64) -> Self {
        let received = vec![0; DEPTH * REPLY_BYTES];
        Self { socket, seed: seed + 1, requests: Vec::new(), received, partial: 0 }
    }

    /// Sends so many requests; their replies are read before there are more, so there is room for them.
    fn send(&mut self, count: usize) {
        self.requests.clear();
        for _ in 0..count {
            // Marsaglia's xorshift.
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            let block = self.seed % (DISK_BYTES / u64::from(BLOCK));
            self.requests.extend(request::MAGIC.to_be_bytes());
            self.requests.extend([0; 2]);
            self.requests.extend(command::READ.to_be_bytes());
            self.requests.extend(self.seed.to_be_bytes());
            self.requests.extend((block * u64::from(BLOCK)).to_be_bytes());
            self.requests.extend(BLOCK.to_be_bytes());
        }
        let sent = send(&self.socket, &self.requests, SendFlags::DONTWAIT);
        assert_eq!(sent, Ok(self.requests.len()), "a few requests fit in a socket");
    }

    /// Takes replies, and sends as many requests; how many it were.
    fn refill(&mut self) -> u64 {
        let Ok((count, _)) = recv(&self.socket, &mut self.received[..], RecvFlags::DONTWAIT) else {
            return 0;
        };
        if self.partial == 0 && count >= 4 {
            assert_eq!(self.received[..4], reply_magic::SIMPLE.to_be_bytes());
        }
        let bytes = self.partial + count;
        let answered = bytes / REPLY_BYTES;
        self.partial = bytes % REPLY_BYTES;
        self.send(answered);
        answered as u64
    }
}

impl FrontEnd for RefillingConnection {
    type Reply = ();
    type Fault = ConnectionEnd;

    fn kick(&self) -> BorrowedFd<'_> {
        self.connection.kick()
    }

    fn interest(&self) -> Interest {
        self.connection.interest()
    }

    fn slots(&self) -> u16 {
        self.connection.slots()
    }

    fn begin_batch(&mut self) {
        self.connection.begin_batch();
    }

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, ConnectionEnd> {
        self.connection.take()
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), outcome: Outcome) {
        self.connection.answer(slot, (), outcome);
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        self.connection.publish(port);
        let answered = self.client.refill();
        if answered > 0 {
            let answers = self.answers.0.load(Ordering::Relaxed) + answered;
            self.answers.0.store(answers, Ordering::Relaxed);
        }
    }

    fn unpublished(&self) -> usize {
        self.connection.unpublished()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        self.connection.transfer_over(transfer);
    }

    fn check(&self) -> Result<(), ConnectionEnd> {
        self.connection.check()
    }

    fn report_fault(&self, port: &mut FrontEndContext<'_>) {
        self.connection.report_fault(port);
    }

    fn has_new(&self) -> bool {
        self.connection.has_new()
    }

    fn waiting(&self) -> u32 {
        self.connection.waiting()
    }

    fn rest(&mut self) -> SleepDecision {
        self.connection.rest()
    }

    fn inherited(&self) -> usize {
        self.connection.inherited()
    }

    fn stays(&self) -> Option<&'static str> {
        self.connection.stays()
    }

    fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        self.connection.arrive(port);
    }

    fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        self.connection.leave(port);
    }
}

/// One sample with so many self-refilling connections on so many iothreads.
pub(crate) fn measure(threads: usize, connections: usize, runtime: Duration) -> Result<Values> {
    let stage = Stage::new(None)?;
    let iothreads = (0..threads).map(|number| stage.iothread(&format!("t{number}")));
    let iothreads = iothreads.collect::<Result<Vec<_>>>()?;
    let (mut placed, mut all) = (Vec::new(), Vec::new());
    for number in 0..connections {
        let (ours, theirs) = UnixStream::pair()?;
        let connection = connection(&*stage.node, ours)?;
        let mut client = Client::new(theirs, number as u64);
        client.send(DEPTH);
        let answers = Arc::new(Answers::default());
        all.push(Arc::clone(&answers));
        let front = RefillingConnection { connection, client, answers };
        placed.push(stage.place(front, &iothreads[number % threads])?);
    }
    let answered = || all.iter().map(|answers| answers.0.load(Ordering::Relaxed)).sum::<u64>();
    clock::pause(RAMP);
    let cpu = || cpu_ns(std::process::id()).context("read the CPU time of this process");
    let (opened, before, cpu_before) = (clock::now(), answered(), cpu()?);
    clock::pause(runtime);
    let (elapsed, count) = (opened.elapsed(), answered() - before);
    let cpu_used = as_f64(cpu()?.saturating_sub(cpu_before));
    placed.into_iter().for_each(|placed| drop(placed.stop()));
    let count = as_f64(count);
    Ok(Values::from([
        (Metric::RequestsPerS, count / elapsed.as_secs_f64()),
        (Metric::CpuNsPerRequest, cpu_used / count),
    ]))
}

fn connection(node: &dyn Node, socket: UnixStream) -> Result<NbdConnection> {
    let (style, contexts) = (HeaderStyle::Simple, MetaContexts::default());
    let offer = ExportOffer {
        name: ProtocolString::default(),
        description: None,
        size: node.size(),
        access: node.access(),
        block_sizes: BlockSizes::of_block(512),
        allocation_depth: false,
        bitmaps: Vec::new(),
        multi_conn: true,
    };
    let flags = TransmissionFlags::of(&offer, style, contexts);
    let ExportOffer { name: export, size, access, block_sizes, .. } = offer;
    Ok(NbdConnection::new(NbdConnectionSetup {
        bitmaps: Arc::new([]),
        socket: socket.into(),
        settings: TransmissionSettings {
            export,
            size,
            access,
            style,
            contexts,
            block_sizes,
            flags,
        },
        received: Vec::new(),
        size: Arc::new(Capacity::new(size)),
        durability: Durability::Cached,
        transport: NbdTransport::Plain,
    })?)
}

/// fio's client reads blocks of 4 KiB at random at depth 16; the process of `server` answers.
pub(crate) fn fio(path: &Path, server: u32, runtime: Duration) -> Result<Values> {
    let before = cpu_ns(server).context("read the server's CPU time")?;
    let mut command = Command::new("fio");
    command.args(["--name=nbd", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=16"]);
    command.arg(format!("--uri=nbd+unix:///d0?socket={}", path.display()));
    command.arg(format!("--size={DISK_BYTES}"));
    let FioResult { rate, count } = read_fio(&mut command, runtime)?;
    let after = cpu_ns(server).context("read the server's CPU time")?;
    let cpu = as_f64(after.saturating_sub(before)) / count;
    Ok(Values::from([(Metric::RequestsPerS, rate), (Metric::CpuNsPerRequest, cpu)]))
}

/// What fio has done.
#[derive(Debug)]
pub(crate) struct FioResult {
    /// Requests in a second.
    pub(crate) rate: f64,
    /// Requests.
    pub(crate) count: f64,
}

/// Runs fio for so long; reads or writes only.
pub(crate) fn read_fio(command: &mut Command, runtime: Duration) -> Result<FioResult> {
    command.args(["--time_based", "--output-format=json"]);
    command.arg(format!("--runtime={}ms", runtime.as_millis()));
    let output = command.output().context("start fio")?;
    anyhow::ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    // Behind what its engine says.
    let start = output.stdout.iter().position(|byte| *byte == b'{').context("fio says nothing")?;
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout[start..]).context("fio's JSON")?;
    let number = |key: &str| {
        let of = |side: &str| report["jobs"][0][side][key].as_f64();
        of("read").zip(of("write")).with_context(|| format!("fio says no {key}"))
    };
    let sum = |(read, write): (f64, f64)| read + write;
    Ok(FioResult { rate: number("iops").map(sum)?, count: number("total_ios").map(sum)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_refill_themselves_on_two_threads() {
        let values = measure(2, 4, Duration::from_millis(50)).unwrap();
        assert!(values[&Metric::RequestsPerS] > 1000.0, "{values:?}");
    }
}
