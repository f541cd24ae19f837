//! A front end whose client is behind a socket that has no room for all answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::{Outcome, SourceRequestSlot};
use disk::ReadContent;
use iothread::{PlacedFrontEnd, SourceObserver};
use kernel_io::FileTable;
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, RequestAction, SleepDecision, StreamTransfer,
};
use rustix::net::{RecvFlags, recv};

use crate::lanes::null_disk;
use crate::setup::{iothreads, name, on_both, place_source, served};

/// More than a socket holds, for a few of them.
const ANSWER_BYTES: usize = 100_000;

/// A request is a byte; its answer has that byte many times.
#[derive(Debug)]
struct OnSocket {
    socket: UnixStream,
    unsent: VecDeque<u8>,
}

impl FrontEnd for OnSocket {
    type Reply = ();
    type Fault = Infallible;

    fn kick(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::ReadOrWrite
    }

    fn slots(&self) -> u16 {
        256
    }

    fn begin_batch(&mut self) {}

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, Infallible> {
        let mut byte = [0];
        Ok(match self.socket.read(&mut byte) {
            Ok(1) => Some(NewRequest {
                slot: SourceRequestSlot(byte[0].into()),
                reply: (),
                work: RequestAction::Done,
            }),
            Ok(_) | Err(_) => None,
        })
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), _: Outcome) {
        let byte = u8::try_from(slot.0).unwrap();
        self.unsent.extend([byte; ANSWER_BYTES]);
    }

    fn publish(&mut self, _: &mut FrontEndContext<'_>) {
        while !self.unsent.is_empty() {
            match self.socket.write(self.unsent.as_slices().0) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) => return assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    fn unpublished(&self) -> usize {
        self.unsent.len().div_ceil(ANSWER_BYTES)
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        panic!("none was begun: {transfer:?}")
    }

    fn check(&self) -> Result<(), Infallible> {
        Ok(())
    }

    fn report_fault(&self, _: &mut FrontEndContext<'_>) {}

    fn has_new(&self) -> bool {
        let mut byte = [0];
        matches!(recv(&self.socket, &mut byte, RecvFlags::PEEK), Ok((1, _)))
    }

    fn waiting(&self) -> u32 {
        self.has_new().into()
    }

    fn rest(&mut self) -> SleepDecision {
        if self.has_new() { SleepDecision::MoreWork } else { SleepDecision::MaySleep }
    }

    fn inherited(&self) -> usize {
        0
    }

    fn stays(&self) -> Option<&'static str> {
        None
    }

    fn arrive(&mut self, _: &mut FrontEndContext<'_>) {}

    fn leave(&mut self, _: &mut FrontEndContext<'_>) {}
}

#[test]
fn answers_that_find_no_room_in_a_socket_are_sent_when_there_is_some() {
    on_both(|reactors| {
        let iothreads = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let (socket, mut client) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let front = OnSocket { socket, unsent: VecDeque::new() };
        let node = null_disk(1 << 20, ReadContent::Untouched);
        let placed = place_source(served(front, &node), &iothreads[0]);
        for round in 0..20 {
            let requests: Vec<u8> = (0..30).collect();
            client.write_all(&requests).unwrap();
            // Also in the middle of an answer.
            let mut answers = vec![0; requests.len() * ANSWER_BYTES];
            let (first, rest) = answers.split_at_mut(round * 30_000);
            client.read_exact(first).unwrap();
            placed.move_to(&iothreads[round % 2]).unwrap();
            client.read_exact(rest).unwrap();
            for (answer, byte) in answers.chunks(ANSWER_BYTES).zip(requests) {
                assert!(answer.iter().all(|found| *found == byte));
            }
        }
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// Counts what is said of a client that kicks for nothing.
#[derive(Debug, Default)]
struct InVain(AtomicU32);

impl SourceObserver for InVain {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        panic!("{fault}");
    }

    fn kicked_while_empty(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn room_to_write_is_no_kick() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let (mut socket, mut client) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let front = OnSocket { socket: socket.try_clone().unwrap(), unsent: VecDeque::new() };
        let node = null_disk(1 << 20, ReadContent::Untouched);
        let in_vain = Arc::new(InVain::default());
        let placed =
            PlacedFrontEnd::on(&iothread, name(0), served(front, &node), Arc::clone(&in_vain) as _)
                .unwrap();
        for _ in 0..5 {
            let mut filled = 0;
            while let Ok(count) = socket.write(&[0; 4096]) {
                filled += count;
            }
            // There is no room now; with what is read there is some, of which the iothread is told before it pays a visit.
            client.read_exact(&mut vec![0; filled]).unwrap();
            placed.visit(|_, _| ()).unwrap();
        }
        assert_eq!(in_vain.0.load(Ordering::SeqCst), 0);
        // A request is a kick, and finds something.
        client.write_all(&[7]).unwrap();
        client.read_exact(&mut [0; ANSWER_BYTES]).unwrap();
        assert_eq!(in_vain.0.load(Ordering::SeqCst), 0);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}
