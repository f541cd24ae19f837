//! Random requests of several connections, compared with plain memory, while connections move and stop.

use iothread::PlacedFrontEnd;
use nbd::wire::{command, command_flag};
use nbd::{HeaderStyle, MetaContext, MetaContexts, NbdConnection};
use testkit::rng::Rng;

use crate::client::{Answer, Ask, Client};
use crate::server::{Server, on_both};

/// Requests of a connection at once, each in a range of its own.
const LANES: usize = 12;
const LANE_BYTES: usize = 96 << 10;
const CONNECTIONS: usize = 3;

/// What a range is doing.
enum Doing {
    Nothing,
    Read { at: usize, count: usize },
    Change,
    Status,
}

/// A client, its connection, and what its part of the disk must have.
struct Peer {
    client: Client,
    placed: Option<PlacedFrontEnd<NbdConnection>>,
    first: usize,
    /// Nobody knows what was discarded.
    model: Vec<Option<u8>>,
    doing: Vec<(Doing, u64)>,
}

impl Peer {
    fn new(server: &Server, number: usize) -> Self {
        let styles = [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];
        // One of them through TLS.
        let (client, placed) = match number {
            0 => server.connect_tls(styles[0]),
            _ => server.connect(styles[number % 3]),
        };
        Self {
            client,
            placed: Some(placed),
            first: number * LANES * LANE_BYTES,
            model: vec![Some(0); LANES * LANE_BYTES],
            doing: (0..LANES).map(|_| (Doing::Nothing, 0)).collect(),
        }
    }

    /// Begins a request in a range that has none.
    fn begin(&mut self, lane: usize, rng: &mut Rng, has_status: bool) {
        let at_sector = rng.index(LANE_BYTES / 512);
        let most = LANE_BYTES / 512 - at_sector;
        let most = if rng.one_in(4) { most } else { most.min(16) };
        let sectors = 1 + rng.index(most);
        let (at, count) = (lane * LANE_BYTES + at_sector * 512, sectors * 512);
        let offset = (self.first + at) as u64;
        let length = count as u64;
        let fua = if rng.one_in(50) { command_flag::FUA } else { 0 };
        let simple = |command, flags| Ask { command, flags, offset, length };
        let (doing, cookie) = match rng.index(16) {
            0..6 => {
                let skip = if rng.one_in(2) { rng.index(512) } else { 0 };
                let (at, count) = (at + skip, count - skip);
                let cookie = self.client.read((self.first + at) as u64, count as u64);
                (Doing::Read { at, count }, cookie)
            }
            6..11 => {
                let data: Vec<u8> = (0..count).map(|_| rng.below(256).to_le_bytes()[0]).collect();
                for (place, byte) in self.model[at..at + count].iter_mut().zip(&data) {
                    *place = Some(*byte);
                }
                (Doing::Change, self.client.write(offset, &data, fua))
            }
            11 | 12 => {
                self.model[at..at + count].fill(Some(0));
                let hole = if rng.one_in(2) { command_flag::NO_HOLE } else { 0 };
                (Doing::Change, self.client.send(simple(command::WRITE_ZEROES, fua | hole), &[]))
            }
            13 => {
                self.model[at..at + count].fill(None);
                (Doing::Change, self.client.send(simple(command::TRIM, fua), &[]))
            }
            14 if has_status => {
                (Doing::Status, self.client.send(simple(command::BLOCK_STATUS, 0), &[]))
            }
            14 => (Doing::Change, self.client.send(simple(command::CACHE, 0), &[])),
            _ => {
                let flush = Ask { command: command::FLUSH, ..Ask::default() };
                (Doing::Change, self.client.send(flush, &[]))
            }
        };
        self.doing[lane] = (doing, cookie);
    }

    fn end(&mut self, answer: &Answer) {
        assert_eq!(answer.error, 0);
        let lane = self.doing.iter().position(|(_, cookie)| *cookie == answer.cookie).unwrap();
        match std::mem::replace(&mut self.doing[lane].0, Doing::Nothing) {
            Doing::Nothing => panic!("an answer to nothing"),
            Doing::Read { at, count } => {
                assert_eq!(answer.data.len(), count);
                for (found, known) in answer.data.iter().zip(&self.model[at..at + count]) {
                    assert!(known.is_none_or(|byte| byte == *found), "bytes at {at}");
                }
            }
            Doing::Change => {}
            Doing::Status => assert!(!answer.status[0].1.is_empty()),
        }
    }
}

#[test]
fn nothing_is_lost_while_connections_move_and_stop() {
    on_both(|reactors| {
        let mut server = Server::of_file(reactors, (CONNECTIONS * LANES * LANE_BYTES) as u64);
        server.contexts = MetaContexts::default().with(MetaContext::BaseAllocation);
        let rng = &mut Rng::new(47);
        let mut peers: Vec<_> = (0..CONNECTIONS).map(|number| Peer::new(&server, number)).collect();
        for round in 0..2500 {
            let peer = &mut peers[rng.index(CONNECTIONS)];
            let has_status = rng.one_in(2) && peer.first > 0;
            for lane in 0..LANES {
                if matches!(peer.doing[lane].0, Doing::Nothing) && !rng.one_in(3) {
                    peer.begin(lane, rng, has_status);
                }
            }
            if rng.one_in(10) {
                let to = &server.iothreads[rng.index(2)];
                peer.placed.as_ref().unwrap().move_to(to).unwrap();
            }
            if rng.one_in(40) {
                let connection = peer.placed.take().unwrap().stop().into_front();
                peer.placed = Some(server.place(connection, rng.index(2)));
            }
            let wanted = rng.index(peer.client.in_flight() + 1);
            let wanted = if round > 2400 { peer.client.in_flight() } else { wanted };
            for _ in 0..wanted {
                let answer = peer.client.answer();
                peer.end(&answer);
            }
        }
        for mut peer in peers {
            while peer.client.in_flight() > 0 {
                let answer = peer.client.answer();
                peer.end(&answer);
            }
            assert!(peer.placed.take().unwrap().stop().into_front().is_settled());
        }
        assert_eq!(server.ends.get(), []);
    });
}

/// More than there are slots, and more than there is memory; as many as a socket holds.
const REQUESTS: usize = 150;

/// A client that reads nothing has as many requests as there are slots, and loses none of them.
#[test]
fn answers_that_nobody_reads_outlive_moves_and_stops() {
    on_both(|reactors| {
        let server = Server::of_null(reactors, 64 << 20);
        unread(&server, server.connect(HeaderStyle::Structured));
        unread(&server, server.connect_tls(HeaderStyle::Structured));
    });
}

fn unread(server: &Server, (mut client, mut placed): (Client, PlacedFrontEnd<NbdConnection>)) {
    for round in 0..4 {
        let cookies: Vec<_> = (0..REQUESTS).map(|_| client.read(512, 1 << 20)).collect();
        placed.move_to(&server.iothreads[round % 2]).unwrap();
        let connection = placed.stop().into_front();
        placed = server.place(connection, round % 2);
        let mut answered: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let answer = client.answer();
                assert_eq!((answer.error, answer.data.len()), (0, 1 << 20));
                answer.cookie
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, cookies);
    }
    assert!(placed.stop().into_front().is_settled());
}
