//! The peer: brings requests over its end of the socket, and finds their answers.
//!
//! Threads: used by one at a time; one of its own writes, since the other side may have no room. Limits: what is written and
//! not taken waits here, so as much as the slots' requests have.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use block::{DiskSize, Operation, Outcome, SourceRequestSlot};
use request_path::LogicalUnitIndex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::StreamFront;
use super::frame::{ANSWER_BYTES, Answer, RequestFrame};

/// The peer of a front end.
#[derive(Debug)]
pub struct StreamClient {
    socket: UnixStream,
    /// For its writer; dropped, that ends.
    outgoing: Option<Sender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    /// By slot: how many bytes come with a good answer.
    open: Box<[Option<usize>]>,
    /// What has arrived and is no whole answer yet.
    incoming: Vec<u8>,
}

impl StreamClient {
    /// A peer with a front end, which has disks of these sizes, and so many slots of so many bytes.
    pub fn new(disks: Vec<DiskSize>, slots: u16, slot_bytes: usize) -> Result<(Self, StreamFront)> {
        let (theirs, socket) = UnixStream::pair()?;
        let front = StreamFront::new(theirs, disks, slots, slot_bytes)?;
        let mut to = socket.try_clone()?;
        let (outgoing, taken) = channel::<Vec<u8>>();
        let writer = std::thread::spawn(move || {
            for bytes in taken {
                if to.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        let (outgoing, writer) = (Some(outgoing), Some(writer));
        let open = vec![None; usize::from(slots)].into();
        Ok((Self { socket, outgoing, writer, open, incoming: Vec::new() }, front))
    }

    /// A slot that has no request.
    pub fn free_slot(&self) -> Option<SourceRequestSlot> {
        let place = self.open.iter().position(Option::is_none)?;
        Some(SourceRequestSlot(u16::try_from(place).expect("slots are 16 bit")))
    }

    /// Requests that were not answered.
    pub fn in_flight(&self) -> usize {
        self.open.iter().flatten().count()
    }

    /// What becomes readable when there are answers.
    pub fn call(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Its end of the socket, for what no good peer does.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Brings a request, with the data of a write.
    pub fn submit(
        &mut self,
        slot: SourceRequestSlot,
        unit: LogicalUnitIndex,
        operation: Operation,
        data: &[u8],
    ) -> Result<()> {
        let frame = RequestFrame::of(slot, unit, operation).context("there is no such frame")?;
        ensure!(data.len() == frame.data_bytes(), "{frame:?} with {} bytes", data.len());
        let open = &mut self.open[usize::from(slot.0)];
        ensure!(open.replace(frame.answer_bytes()).is_none(), "{slot:?} has a request");
        self.write([&frame.to_bytes(), data].concat());
        Ok(())
    }

    /// Writes these bytes behind the others.
    pub fn write(&mut self, bytes: Vec<u8>) {
        // Whoever has ended reads nothing; its answers say so.
        let _gone = self.outgoing.as_ref().map(|outgoing| outgoing.send(bytes));
    }

    /// The answers that have arrived, with the data of reads. Does not wait.
    pub fn collect(&mut self) -> Result<Vec<(SourceRequestSlot, Outcome, Vec<u8>)>> {
        self.receive()?;
        let (mut over, mut from) = (Vec::new(), 0);
        while let Some(frame) = self.incoming[from..].first_chunk::<ANSWER_BYTES>() {
            let answer = Answer::parse(frame)?;
            let data = self.incoming[from + ANSWER_BYTES..].get(..answer.count);
            let Some(data) = data.map(<[u8]>::to_vec) else { break };
            from += ANSWER_BYTES + answer.count;
            let open = self.open.get_mut(usize::from(answer.slot.0)).and_then(Option::take);
            let expected = open.with_context(|| format!("{answer:?} to no request, or again"))?;
            let expected = if answer.outcome == Outcome::Done { expected } else { 0 };
            ensure!(answer.count == expected, "{answer:?} instead of {expected} bytes");
            over.push((answer.slot, answer.outcome, data));
        }
        self.incoming.drain(..from);
        Ok(over)
    }

    fn receive(&mut self) -> Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => bail!("the front end has ended the connection"),
                Ok((count, _)) => self.incoming.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno).context("the connection has failed"),
            }
        }
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.outgoing = None;
        // It may be writing to somebody who does not read.
        let _gone = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(writer) = self.writer.take() {
            writer.join().expect("it does not panic");
        }
    }
}
