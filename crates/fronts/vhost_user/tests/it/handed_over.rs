//! Sessions that are asked to pause, and what is made of them elsewhere.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user::{
    PauseOutcome, SavedSession, SessionControl, SessionEnd, SessionError, SessionServer,
};

use crate::front_end::{
    FrontEnd, GET_FEATURES, LOW, NEED_REPLY, SET_VRING_ENABLE, SET_VRING_KICK, event, state, words,
};
use crate::mock::{Asked, Mock, is_same};

/// How long a pause may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Who asks sessions to pause.
struct Asker {
    bell: OwnedFd,
    background: OwnedFd,
    verdict: Mutex<Receiver<PauseOutcome>>,
    states: Mutex<Sender<SavedSession>>,
    looks: Mutex<Sender<()>>,
}

/// The test's side of it.
struct Asks {
    asker: Arc<Asker>,
    verdict: Sender<PauseOutcome>,
    states: Receiver<SavedSession>,
    looks: Receiver<()>,
}

impl SessionControl for Asker {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn background(&self) -> Option<BorrowedFd<'_>> {
        Some(self.background.as_fd())
    }

    fn run_background(&self) {
        rustix::io::read(&self.background, &mut [0; 8]).expect("there is something");
        self.looks.lock().expect("it is alone").send(()).expect("the test waits");
    }

    fn paused(&self, state: SavedSession) -> PauseOutcome {
        rustix::io::read(&self.bell, &mut [0; 8]).expect("it rings");
        self.states.lock().expect("it is alone").send(state).expect("the test waits");
        self.verdict.lock().expect("it is alone").recv().expect("the test answers")
    }
}

impl Asks {
    fn new() -> Self {
        let (verdict, verdicts) = channel();
        let (sender, states) = channel();
        let (look, looks) = channel();
        let asker = Arc::new(Asker {
            bell: event(),
            background: event(),
            verdict: Mutex::new(verdicts),
            states: Mutex::new(sender),
            looks: Mutex::new(look),
        });
        Self { asker, verdict, states, looks }
    }

    /// A front end of a session that can be asked.
    fn front_end(&self, mock: &Mock) -> FrontEnd {
        let asker = Arc::clone(&self.asker);
        let run = move |stream: UnixStream, device: Mock| {
            SessionServer::new(stream, device)?.run(&*asker).map(|_: SessionEnd| ())
        };
        let mut front_end = FrontEnd::served(mock, run).negotiate();
        front_end.set_memory(&[LOW]);
        front_end
    }

    fn ring(&self) {
        rustix::io::write(&self.asker.bell, &1_u64.to_ne_bytes()).expect("it takes a number");
    }

    /// Lets the session pause, and it must at once.
    #[track_caller]
    fn pause(&self, verdict: PauseOutcome) -> SavedSession {
        self.ring();
        let state = self.states.recv_timeout(LIMIT).expect("the session pauses");
        self.verdict.send(verdict).expect("it waits for that");
        state
    }
}

/// The bytes of SET_VRING_ENABLE of queue 0 that wants an answer.
fn message() -> Vec<u8> {
    let header = [SET_VRING_ENABLE, 1 | NEED_REPLY, 8].map(u32::to_le_bytes).concat();
    [header, state(0, 0)].concat()
}

/// Between two messages, and in the middle of one.
#[test]
fn what_is_aside_is_looked_at_at_once_and_no_message_is_lost() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    let message = message();
    for cut in [0, 1, message.len() / 2, message.len() - 1] {
        front_end.bytes(&message[..cut]);
        for _ in 0..2 {
            rustix::io::write(&asks.asker.background, &1_u64.to_ne_bytes())
                .expect("it takes a number");
            asks.looks.recv_timeout(LIMIT).expect("it is looked at");
        }
        front_end.bytes(&message[cut..]);
        assert_eq!(front_end.answer(), Some(words(&[0])), "cut after {cut} bytes");
    }
    front_end.leave().unwrap();
}

/// Cut anywhere, also more than once, a message holds up nobody who wants the session to pause, and it is
/// a message when the rest has come.
#[test]
fn part_of_a_message_delays_no_pause_and_is_not_lost() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    let message = message();
    for cut in 1..message.len() {
        front_end.bytes(&message[..cut]);
        asks.pause(PauseOutcome::Resume);
        let second = cut + (message.len() - cut) / 2;
        front_end.bytes(&message[cut..second]);
        asks.pause(PauseOutcome::Resume);
        front_end.bytes(&message[second..]);
        assert_eq!(front_end.answer(), Some(words(&[0])), "cut after {cut} bytes");
    }
    front_end.leave().unwrap();
}

#[test]
fn part_of_a_message_with_its_descriptor_delays_no_pause() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    front_end.describe(0, LOW.user, 5);
    front_end.enable(0, 1);
    let message = [SET_VRING_KICK, 1 | NEED_REPLY, 8].map(u32::to_le_bytes).concat();
    for round in 0..20 {
        let kick = event();
        front_end.raw_with(&message, &[kick.as_fd()]);
        // The second one finds it waiting for the rest.
        asks.pause(PauseOutcome::Resume);
        asks.pause(PauseOutcome::Resume);
        front_end.bytes(&words(&[0]));
        assert_eq!(front_end.answer(), Some(words(&[0])), "round {round}");
        assert!(is_same(&mock.record().served[&0].kick, &kick), "round {round}");
    }
    front_end.leave().unwrap();
}

/// Answers that nobody reads fill the socket: nothing more is answered, and nothing is lost.
#[test]
fn answers_that_are_not_read_delay_no_pause() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    let question = [GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    front_end.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match front_end.stream.write(&question) {
            Ok(12) => sent += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // If nothing is taken for so long, nothing will be before this one reads.
                let mut fds = [PollFd::new(&front_end.stream, PollFlags::OUT)];
                let while_full = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
                if poll(&mut fds, Some(&while_full)).unwrap() == 0 {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    front_end.stream.set_nonblocking(false).unwrap();
    asks.pause(PauseOutcome::Resume);
    asks.pause(PauseOutcome::Resume);
    for question in 0..sent {
        assert_eq!(front_end.answer().map(|it| it.len()), Some(8), "question {question} of {sent}");
    }
    front_end.leave().unwrap();
}

/// A header in pieces of which the first has a descriptor cannot be put together: it must not block
/// whoever wants a pause.
#[test]
fn a_header_that_is_torn_behind_its_descriptor_ends_the_session() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    let kick = event();
    let message = [SET_VRING_KICK, 1, 8].map(u32::to_le_bytes).concat();
    front_end.raw_with(&message[..4], &[kick.as_fd()]);
    front_end.bytes(&message[4..]);
    front_end.refused("front end sent a message that cannot be taken: partial message");
}

#[test]
fn what_cannot_become_a_message_is_not_waited_for() {
    let (asks, mock) = (Asks::new(), Mock::default());
    for [request, flags, bytes] in
        [[0, 1, 8], [9999, 1, 8], [SET_VRING_ENABLE, 2, 8], [SET_VRING_ENABLE, 1, 4097]]
    {
        let mut front_end = asks.front_end(&mock);
        front_end.bytes(&[request, flags, bytes].map(u32::to_le_bytes).concat());
        front_end.refused("front end sent a message that cannot be taken: invalid message");
    }
}

#[test]
fn a_front_end_that_leaves_in_the_middle_of_a_message_is_heard() {
    let (asks, mock) = (Asks::new(), Mock::default());
    for cut in [1, 12, 19] {
        let mut front_end = asks.front_end(&mock);
        front_end.bytes(&message()[..cut]);
        // The session waits for the rest by now, or finds both at once.
        asks.pause(PauseOutcome::Resume);
        front_end.leave().unwrap_err();
    }
}

/// A device that has to wait for its image, say, puts the start off when somebody wants a pause: the
/// message is answered, and the ring started by whoever goes on.
#[test]
fn a_start_that_was_put_off_is_made_good_after_the_pause() {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    mock.record().postpones = true;
    front_end.start(0, 5);
    assert_eq!(mock.asked(), [Asked::Start(0, 5)]);
    assert!(mock.record().served.is_empty());
    asks.ring();
    let saved = asks.states.recv_timeout(LIMIT).expect("the session pauses");
    let ring = &saved.rings[0];
    assert!(ring.enabled && ring.kick.is_some() && ring.base.is_some(), "{ring:?}");
    mock.record().postpones = false;
    asks.verdict.send(PauseOutcome::Resume).unwrap();
    // Answered when the pause is over.
    front_end.ask(GET_FEATURES, &[]);
    assert_eq!(mock.asked(), [Asked::Start(0, 5)]);
    assert!(mock.record().served.contains_key(&0));
    front_end.leave().unwrap();
}

/// A session of two served queues, as it is handed over.
fn two_queues() -> (SavedSession, FrontEnd) {
    let (asks, mock) = (Asks::new(), Mock::default());
    let mut front_end = asks.front_end(&mock);
    front_end.start(0, 5);
    front_end.start(1, 6);
    let state = asks.pause(PauseOutcome::HandedOver);
    (state, front_end)
}

/// Restores a session for a device. Its connection is not exchanged: nothing is said on it.
fn restore(state: SavedSession, device: &Mock) -> Result<SessionServer<Mock>, SessionError> {
    let (stream, _other) = UnixStream::pair().expect("sockets are available");
    SessionServer::restore(&stream, device.clone(), state, |_, _, _| Ok(()))
}

#[test]
fn a_restored_session_goes_on_where_its_queues_stood() {
    let (state, _front_end) = two_queues();
    let mock = Mock::default();
    let server = restore(state, &mock).unwrap();
    assert!(mock.asked().is_empty(), "nothing is served before it is resumed");
    let mut told = 0;
    // Nobody is at the other end, so it ends at once.
    let end = server.resume(&*Asks::new().asker, || told += 1).unwrap();
    assert_eq!((end, told), (SessionEnd::Disconnected, 1));
    let stops = [Asked::Stop(0), Asked::Stop(1)];
    assert_eq!(mock.asked(), [&[Asked::Start(0, 15), Asked::Start(1, 16)][..], &stops].concat());
}

/// The queues before the one that cannot be served are served already: nobody else would stop them.
#[test]
fn a_restored_session_that_fails_half_way_leaves_no_queue_behind() {
    let (state, _front_end) = two_queues();
    let mock = Mock::default();
    mock.record().unfit = Some(1);
    let server = restore(state, &mock).unwrap();
    let error = server.resume(&*Asks::new().asker, || panic!("not all are served")).unwrap_err();
    assert_eq!(error.to_string(), "queue 1 cannot be served");
    let asked = [Asked::Start(0, 15), Asked::Start(1, 16), Asked::Stop(0)];
    assert_eq!(mock.asked(), asked);
    assert!(mock.record().served.is_empty(), "a queue is served by a session that is gone");
    assert_eq!(mock.record().rests, 1);
}
