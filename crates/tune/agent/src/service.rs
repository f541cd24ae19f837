//! The agent's side of a stream: hears a client, has fio run, tells what becomes of it.
//!
//! Threads: one reads lines, one obeys them, one does what takes time (a run, a fill), one hands on what fio prints. Whichever of them
//! notices that the client is gone, all end.
//!
//! Limits: [`SILENCE_LIMIT`], [`HELLO_LIMIT`], `ASKS_MAX` lines that were read and not yet obeyed. An agent that cannot write
//! waits for its client; the end of the stream ends that, too.

mod disk;
mod facts;
mod fio;
mod hold;
mod work;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

pub(crate) use self::hold::{become_fio, hold};
use self::work::Work;
use crate::clock;
use crate::error::AgentError;
use crate::line::{self, Lines};
use crate::meters::Meters;
use crate::protocol::{Ask, SILENCE_LIMIT, Tell, VERSION};
use crate::token::Token;

/// A client says who it is within this time.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(10);
const ASKS_MAX: usize = 16;
/// How often the end of a stream is looked for that only the writer has noticed.
const LOOK: Duration = Duration::from_millis(100);

/// What an agent runs, and for whom.
#[derive(Clone, Debug)]
pub struct Service {
    /// The program.
    pub fio: PathBuf,
    /// A command line that becomes the fio that stands behind it (`become_fio`), so that it dies with the agent; nothing in a test
    /// whose process has no such command.
    pub through: Vec<OsString>,
    /// What the client has to know.
    pub token: Option<Token>,
}

/// Obeys one client until it leaves.
///
/// # Errors
/// If the stream breaks, what it says is not understood, or the client may not order anything.
pub fn serve(
    service: &Service,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), AgentError> {
    let (asks, mouth) = begin(input, output)?;
    check_hello(service, &asks, &mouth)?;
    say_hello(service, &mouth)?;
    obey(service, &asks, &mouth)
}

/// What was read of the stream, or why nothing more will come.
pub(crate) type Asks = Receiver<Result<Ask, AgentError>>;

/// Starts to read.
pub(crate) fn begin(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(Asks, Mouth), AgentError> {
    let (sender, asks) = sync_channel(ASKS_MAX);
    let mut lines = Lines::new(input);
    let read = move || {
        while let Some(ask) = lines.next().transpose() {
            let is_broken = ask.is_err();
            if sender.send(ask).is_err() || is_broken {
                return;
            }
        }
    };
    thread::Builder::new().name("agent read".into()).spawn(read).map_err(AgentError::Stream)?;
    Ok((asks, Mouth(Arc::new(Mutex::new(Some(Box::new(output)))))))
}

/// The first line of a client, which is told if it may order nothing.
pub(crate) fn check_hello(service: &Service, asks: &Asks, mouth: &Mouth) -> Result<(), AgentError> {
    let refuse = |why: String| {
        // The client may be gone; the error says what matters.
        drop(mouth.say(&Tell::Failed { why: why.clone() }));
        Err(AgentError::Refused(why))
    };
    match asks.recv_timeout(HELLO_LIMIT) {
        Ok(Ok(Ask::Hello { version, token })) => {
            if version != VERSION {
                return refuse(format!(
                    "the client speaks version {version} of the protocol, this agent {VERSION}: both must be the same ringloom"
                ));
            }
            if service.token.as_ref().is_some_and(|own| !own.is_known(token.as_ref())) {
                return refuse("the client does not know the token".to_owned());
            }
            Ok(())
        }
        Ok(Ok(_)) => refuse("a client says hello first".to_owned()),
        Ok(Err(error)) => refuse(error.to_string()),
        Err(RecvTimeoutError::Timeout) => {
            refuse(format!("no hello within {} s", HELLO_LIMIT.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err(AgentError::Lost(String::new())),
    }
}

/// The answer to it.
pub(crate) fn say_hello(service: &Service, mouth: &Mouth) -> Result<(), AgentError> {
    let facts = Box::new(facts::look(&service.fio));
    mouth.say(&Tell::Hello { version: VERSION, facts })
}

/// Everything after the greeting. What is under way ends with it.
pub(crate) fn obey(service: &Service, asks: &Asks, mouth: &Mouth) -> Result<(), AgentError> {
    let mut work = Work::default();
    let mut heard = clock::now();
    loop {
        let ask = match asks.recv_timeout(LOOK) {
            Ok(Ok(ask)) => ask,
            Ok(Err(error)) => {
                drop(mouth.say(&Tell::Failed { why: error.to_string() }));
                return Err(error);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if mouth.is_closed() => {
                return Err(AgentError::Lost(String::new()));
            }
            Err(RecvTimeoutError::Timeout) if heard.elapsed() > SILENCE_LIMIT => {
                return Err(AgentError::Silent(SILENCE_LIMIT.as_secs()));
            }
            Err(RecvTimeoutError::Timeout) => continue,
        };
        heard = clock::now();
        let answer = match ask {
            Ask::Alive {} => continue,
            Ask::End {} => return Ok(()),
            Ask::Stop {} => {
                work.stop();
                continue;
            }
            Ask::Hello { .. } => {
                Tell::Failed { why: "the client has said hello before".to_owned() }
            }
            Ask::Clock {} => Tell::Clock { wall_ns: clock::wall_ns() },
            Ask::Meters {} => Tell::Meters { meters: Meters::read() },
            ask @ (Ask::Disk { .. } | Ask::Fill { .. } | Ask::Run { .. }) => {
                match work.begin(service, ask, mouth) {
                    Ok(()) => continue,
                    Err(why) => Tell::Failed { why },
                }
            }
        };
        mouth.say(&answer)?;
    }
}

/// Writes lines; all threads of an agent have it.
#[derive(Clone)]
pub(crate) struct Mouth(Arc<Mutex<Option<Box<dyn Write + Send>>>>);

impl Mouth {
    /// Says something; once that has failed, it is closed.
    pub(crate) fn say(&self, tell: &Tell) -> Result<(), AgentError> {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = output.as_mut() else { return Err(AgentError::Lost(String::new())) };
        let written = line::write(open, tell);
        if written.is_err() {
            *output = None;
        }
        written
    }

    fn is_closed(&self) -> bool {
        // Somebody who is writing has not failed yet.
        self.0.try_lock().is_ok_and(|it| it.is_none())
    }
}
