//! What a connection allocates: nothing for a request, little while it is idle.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use block::SystemClock;
use kernel_io::{FileTable, Notifier, ReactorChoice, WaitMode};
use nbd::{HeaderStyle, NbdConnection, NbdTransport};
use request_path::{
    Engine, FrontEndSource, SleepDecision, Source, SourceKey, TurnBudget, TurnResult,
};
use testkit::counting::{Counting, allocations, bytes};

use crate::client::Client;
use crate::server::{Server, on_both};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A connection that this thread serves, and its client.
struct Rig {
    engine: Engine,
    source: FrontEndSource<NbdConnection>,
    client: Client,
}

impl Rig {
    fn new(server: &Server, reactors: ReactorChoice) -> Self {
        let notifier = Arc::new(Notifier::new().unwrap());
        let files = Arc::new(FileTable::default());
        let mut engine = Engine::new(files, notifier, Arc::new(SystemClock), reactors).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let style = HeaderStyle::Structured;
        let before = bytes();
        let connection =
            server.connection(ours, server.settings(style), Vec::new(), NbdTransport::Plain);
        let owner = Arc::new(Notifier::new().unwrap());
        let mut source = FrontEndSource::new(connection, vec![Arc::clone(&server.node)], owner);
        let lanes = engine.open_lanes(source.nodes()).unwrap();
        source.arrive(&mut engine, lanes, SourceKey(0));
        let mut rig = Self { engine, source, client: Client::new(theirs, style) };
        rig.turn();
        let taken = bytes() - before;
        assert!(taken < 40 << 10, "{taken} bytes for a connection");
        rig
    }

    /// A turn, and what the kernel has to say; returns how often that has allocated.
    fn turn(&mut self) -> u64 {
        let before = allocations();
        let turn = self.source.turn(&mut self.engine, TurnBudget::Alone(64));
        assert!(matches!(turn, TurnResult::Idle | TurnResult::More), "{turn:?}");
        if self.source.rest() == SleepDecision::MaySleep {
            self.engine.wait(WaitMode::AtMost(Duration::from_millis(1))).unwrap();
        }
        let mut signals = Vec::new();
        self.engine.dispatch(&mut signals);
        let allocated = allocations() - before;
        allocated - u64::from(signals.capacity() > 0)
    }

    /// As many requests, eight at a time; returns how often they have allocated.
    fn requests(&mut self, count: usize) -> u64 {
        let (mut done, mut allocated, before) = (0, 0, self.source.answered());
        while done < count {
            for number in 0..8 {
                if number % 2 == 0 {
                    self.client.read(4096 * number, 4096);
                } else {
                    self.client.write(0, &[1; 4096], 0);
                }
            }
            let answered = before + u64::try_from(done + 8).unwrap();
            while self.source.answered() < answered || !self.source.front().is_settled() {
                allocated += self.turn();
            }
            for _ in 0..8 {
                assert_eq!(self.client.answer().error, 0);
            }
            done += 8;
        }
        allocated
    }

    fn end(mut self) {
        self.source.begin_leaving(&mut self.engine);
        while self.source.in_flight() > 0 {
            self.engine.wait(WaitMode::Poll).unwrap();
            self.engine.dispatch(&mut Vec::new());
            let _end = self.source.turn(&mut self.engine, TurnBudget::CompletionsOnly);
        }
        self.source.depart(&mut self.engine);
    }
}

#[test]
fn requests_allocate_nothing_and_an_idle_connection_is_small() {
    on_both(|reactors| {
        let server = Server::of_null(reactors, 64 << 20);
        let mut rig = Rig::new(&server, reactors);
        rig.requests(200);
        let fewest = (0..5).map(|_| rig.requests(400)).min();
        assert!(fewest < Some(10), "{fewest:?} allocations for 400 requests");
        rig.end();
    });
}
