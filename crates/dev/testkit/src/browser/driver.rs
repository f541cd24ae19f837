//! chromedriver as a process, and its protocol: JSON over HTTP on the loopback.
//!
//! Invariants: the driver chooses its port, so that two never meet; driver, browser and the browser's children are ended
//! by their own pids on drop, also when a test panics; then their directory goes.
//! Limits: the driver starts within `START_LIMIT`; a command takes at most `COMMAND_LIMIT` and answers with at most
//! `ANSWER_BYTES_MAX`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use ureq::Agent;

use super::processes;
use crate::deadline::poll_until;
use crate::process::{Bench, Program, START_LIMIT, Server};

/// Longer than scripts and pages may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);
/// A screenshot of a long page in base64 has some 20 MB.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// It chooses a port of IPv4 and takes the same of IPv6, where another one may have it.
const TAKEN: &str = "Address already in use";
const STARTS_MAX: usize = 5;
/// What chromedriver says once it listens; the number of the port and a full stop follow.
const STARTED: &str = "started successfully on port ";

/// A running chromedriver.
#[derive(Debug)]
pub(super) struct Driver {
    server: Server,
    base: String,
    agent: Agent,
    directory: Bench,
}

/// A browser that the driver has started, with its window.
#[derive(Debug)]
pub(super) struct Session {
    base: String,
    agent: Agent,
}

impl Driver {
    /// Starts it on a port of its choice.
    pub(super) fn start() -> Result<Self> {
        let directory = Bench::new()?;
        let mut program = Program::named(super::CHROMEDRIVER, super::CHROMEDRIVER, &[]);
        for variable in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
            program = program.with_variable(variable, &directory.text(""));
        }
        let mut starts = 0;
        loop {
            starts += 1;
            let mut server = program.spawn(&["--port=0".to_owned()])?;
            let port = poll_until("chromedriver to listen", START_LIMIT, || {
                let is_alive = server.is_alive()?;
                let port = port_in(&server.stdout());
                Ok((port.is_some() || !is_alive).then_some(port))
            })?;
            if let Some(port) = port {
                let base = format!("http://127.0.0.1:{port}");
                return Ok(Self { server, base, agent: agent(), directory });
            }
            let said = format!("{}{}", server.stdout(), server.log());
            ensure!(said.contains(TAKEN) && starts < STARTS_MAX, "chromedriver has ended: {said}");
        }
    }

    /// Where the browser keeps what it remembers.
    pub(super) fn profile(&self) -> PathBuf {
        self.directory.path("profile")
    }

    /// Starts a browser.
    pub(super) fn session(&self, capabilities: &Value) -> Result<Session> {
        let asked = post(&self.agent, &format!("{}/session", self.base), capabilities);
        let answer = asked.with_context(|| format!("start a browser: {}", self.server.log()))?;
        let id = answer["sessionId"].as_str().context("a session has an id")?;
        Ok(Session { base: format!("{}/session/{id}", self.base), agent: self.agent.clone() })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        processes::end_descendants(self.server.pid());
    }
}

impl Session {
    /// A command with parameters; returns the `value` of the answer.
    pub(super) fn post(&self, command: &str, parameters: &Value) -> Result<Value> {
        post(&self.agent, &format!("{}/{command}", self.base), parameters)
            .with_context(|| format!("browser: {command}"))
    }

    /// A question; returns the `value` of the answer.
    pub(super) fn get(&self, question: &str) -> Result<Value> {
        let called = self.agent.get(format!("{}/{question}", self.base)).call();
        let answer = called.with_context(|| format!("browser: {question}"))?;
        value_of(answer).with_context(|| format!("browser: {question}"))
    }

    /// A command without parameters.
    pub(super) fn command(&self, command: &str) -> Result<()> {
        self.post(command, &json!({})).map(drop)
    }
}

/// What holds for all requests.
fn agent() -> Agent {
    Agent::config_builder()
        .timeout_global(Some(COMMAND_LIMIT))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
}

fn post(agent: &Agent, url: &str, parameters: &Value) -> Result<Value> {
    let answer = agent.post(url).content_type("application/json").send(parameters.to_string());
    value_of(answer.context("ask chromedriver")?)
}

/// Every answer has a `value`; of a failed command it says what went wrong.
fn value_of(mut answer: ureq::http::Response<ureq::Body>) -> Result<Value> {
    let reader = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).reader();
    let mut body: Value = serde_json::from_reader(reader).context("read chromedriver's answer")?;
    let value = body["value"].take();
    ensure!(answer.status().is_success(), "{}: {}", value["error"], text_of(&value["message"]));
    Ok(value)
}

/// Without the list of addresses that follows.
fn text_of(message: &Value) -> &str {
    let text = message.as_str().unwrap_or_default();
    text.split("\nStacktrace").next().unwrap_or_default().trim_end()
}

fn port_in(output: &str) -> Option<u16> {
    let (_, rest) = output.split_once(STARTED)?;
    let (number, _) = rest.split_once('.')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_once_its_line_is_whole() {
        let said = "Starting ChromeDriver 156.0.8078.79 (a21) on port 0\nChromeDriver was started successfully on port 41541.\n";
        assert_eq!(port_in(said), Some(41541));
        assert_eq!(port_in(said.trim_end_matches("1.\n")), None);
        assert_eq!(port_in("Starting ChromeDriver 156.0.8078.79 (a21) on port 0\n"), None);
    }
}
