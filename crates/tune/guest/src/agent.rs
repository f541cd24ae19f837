//! The agent in a guest, spoken to over a virtio-serial port; `initramfs/init.sh` is its other half.
//!
//! Invariants: one order at a time; an order that was not answered is never followed by another one, so a guest
//! whose wait was given up obeys no more.

use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::Watch;
use crate::answer::{Answer, Progress};
use crate::channel::{Channel, News};
use crate::clock::now;

/// The port's name in the guest.
pub(crate) const PORT: &str = "ringloom.agent";
/// How long a guest may take no byte of an order.
const TAKE_LIMIT: Duration = Duration::from_secs(30);
/// Reads per look; a guest that prints without end is left to the next look.
const READS_MAX: usize = 64;

/// A script that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its exit status, as the shell gives it: 0 to 255.
    pub status: i32,
    /// All that it printed, on stdout and stderr, byte for byte.
    pub output: Vec<u8>,
    /// When the end was seen here.
    pub ended: Instant,
}

impl Finished {
    /// The output as text, for parsing and for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// The output of a script that must have ended with 0; `what` begins the error's sentence.
    pub fn success(self, what: &str) -> Result<Vec<u8>> {
        let text = || self.text();
        ensure!(self.status == 0, "{what} ended with {}: {}", self.status, text().trim());
        Ok(self.output)
    }
}

/// What there is to be said of the order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Working,
    Done(Finished),
    /// QEMU has closed the port.
    Gone,
}

/// The connection to it.
#[derive(Debug)]
pub(crate) struct Agent {
    channel: Channel,
    /// The words of orders begin with it; scripts do not learn it.
    secret: String,
    orders: u64,
    answer: Option<Answer>,
}

impl Agent {
    /// Waits for the hello as for an order's answer.
    pub(crate) fn over(stream: UnixStream) -> Result<Self> {
        let channel = Channel::new(stream, "the agent's port")?;
        let random = || RandomState::new().hash_one(0);
        let secret = format!("{:016x}{:016x}", random(), random());
        Ok(Self { channel, secret, orders: 0, answer: Some(Answer::new("hello")) })
    }

    /// Orders a script to be run.
    pub(crate) fn run(&mut self, script: &str, watch: Watch<'_>) -> Result<()> {
        self.order("run", "", script.as_bytes(), watch)
    }

    /// Orders a file to be written.
    pub(crate) fn put(&mut self, path: &str, content: &[u8], watch: Watch<'_>) -> Result<()> {
        let is_one_word = !path.is_empty() && path.trim() == path && !path.contains('\n');
        ensure!(is_one_word, "path {path:?} in a guest: the agent takes no such path");
        self.order("put", path, content, watch)
    }

    fn order(&mut self, order: &str, path: &str, bytes: &[u8], watch: Watch<'_>) -> Result<()> {
        ensure!(self.answer.is_none(), "the last order was not answered yet");
        self.orders += 1;
        let word = format!("{}-{}", self.secret, self.orders);
        self.answer = Some(Answer::new(&word));
        let line = format!("{order} {word} {} {path}\n", bytes.len());
        self.channel.send(line.as_bytes(), TAKE_LIMIT, watch)?;
        self.channel.send(bytes, TAKE_LIMIT, watch)
    }

    /// Whether it can be given an order.
    pub(crate) fn is_idle(&self) -> bool {
        self.answer.is_none()
    }

    /// Reads what has arrived.
    pub(crate) fn look(&mut self) -> Result<State> {
        let Some(answer) = &mut self.answer else { return Ok(State::Idle) };
        for _ in 0..READS_MAX {
            let mut bytes = Vec::new();
            match self.channel.receive(&mut bytes)? {
                News::Bytes => {}
                News::Nothing => return Ok(State::Working),
                News::End => return Ok(State::Gone),
            }
            if let Progress::Whole(status) = answer.feed(&bytes)? {
                let ended = now();
                let output = self.answer.take().map(Answer::into_output).unwrap_or_default();
                return Ok(State::Done(Finished { status, output, ended }));
            }
        }
        Ok(State::Working)
    }

    /// What the order has printed so far.
    pub(crate) fn output(&self) -> &[u8] {
        self.answer.as_ref().map_or(&[], Answer::output)
    }

    /// Waits a moment for something to arrive.
    pub(crate) fn wait(&self) -> Result<()> {
        self.channel.wait()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};

    use super::*;

    fn agent() -> (Agent, BufReader<UnixStream>) {
        let (near, far) = UnixStream::pair().expect("sockets");
        let mut agent = Agent::over(near).expect("an agent");
        let mut far = BufReader::new(far);
        far.get_mut().write_all(b"@@begin hello\n6.1\n@@end hello 0\n").expect("written");
        let State::Done(hello) = agent.look().expect("no error") else { panic!("no hello") };
        assert_eq!(hello.text(), "6.1\n");
        (agent, far)
    }

    #[test]
    fn an_order_is_a_line_and_its_bytes() {
        let (mut agent, mut far) = agent();
        assert_eq!(agent.look().expect("no error"), State::Idle);
        agent.run("true\n", &mut || Ok(())).expect("sent");
        let mut line = String::new();
        far.read_line(&mut line).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [order, word, length] = words[..] else { panic!("{line}") };
        assert_eq!((order, length), ("run", "5"));
        assert_eq!(agent.look().expect("no error"), State::Working);
        let answer = format!("@@begin {word}\nx@@end {word} 1\n");
        far.get_mut().write_all(answer.as_bytes()).expect("written");
        let State::Done(finished) = agent.look().expect("no error") else { panic!("not done") };
        let error = finished.success("it").expect_err("status 1");
        assert_eq!(error.to_string(), "it ended with 1: x");
    }

    #[test]
    fn an_order_waits_for_the_last_ones_answer() {
        let (mut agent, far) = agent();
        agent.run("true\n", &mut || Ok(())).expect("sent");
        agent.run("true\n", &mut || Ok(())).expect_err("the first one is not answered");
        drop(far);
        assert_eq!(agent.look().expect("no error"), State::Gone);
    }

    #[test]
    fn a_path_that_would_be_another_order_is_refused() {
        let (mut agent, _far) = agent();
        for path in ["", "a\nrun", " a", "a "] {
            agent.put(path, b"", &mut || Ok(())).expect_err(path);
        }
    }
}
