//! The user's own guest, reached by the system's program `ssh`.
//!
//! `given` opens a `Connection` and asks and orders through it; `measure::given` has fio run there (`Remote`).
//!
//! Invariants: one connection carries everything (a master of ssh, whose socket only we can reach). Whatever runs in the guest
//! holds on to its standard input and ends with it, so nothing is left there, even after a `kill -9` here; the directory in the
//! guest goes the same way. Every ssh is a child of ours, ended by its own pid.
//! Limits: nobody types a password. The connection is lost when the guest has been silent for `ALIVE_S` × `ALIVE_COUNT`
//! seconds; every wait has a bound (`CONNECT_LIMIT`, `COMMAND_LIMIT`, `END_LIMIT`) and asks whether to go on.

mod address;
mod remote;
mod trouble;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use load::child::{Request, Supervised};
use storage::clock;
use tempfile::TempDir;

pub(crate) use address::Address;
pub(crate) use remote::Remote;

/// Of one attempt to reach one address of the guest.
const CONNECT_TIMEOUT_S: u32 = 10;
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// fio in the guest has two seconds to end by itself.
const END_LIMIT: Duration = Duration::from_secs(4);
const ALIVE_S: u32 = 5;
const ALIVE_COUNT: u32 = 3;
const LOOK: Duration = Duration::from_millis(10);
/// ssh's own failures; scripts that run in the guest end with another status.
const SSH_FAILED: i32 = 255;
/// What the guest says once it obeys, before the name of our directory in it.
const HELLO: &str = "ringloom-is-at";
/// Keeps a directory until its input ends. One line, quoted so that every login shell passes it on.
const KEEP: &str =
    r#"sh -c 'd=$(mktemp -d) && echo "ringloom-is-at $d" && cat >/dev/null; rm -rf "$d"'"#;

/// Asked while waiting whether to go on.
pub(crate) type Check<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A connection to a guest that obeys.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Address,
    config: Option<PathBuf>,
    master: Master,
    /// Ours in the guest.
    far: String,
    /// The socket of the master and what the commands print; only we can read it.
    near: TempDir,
    /// How many commands were started, for the names of their files.
    commands: u32,
    /// A command has noticed that it is lost, perhaps before the master does.
    lost: bool,
}

impl Connection {
    /// Logs in. `config` is used instead of the user's configuration of ssh.
    ///
    /// # Errors
    /// Why not, and what to do about it.
    pub(crate) fn open(address: &Address, config: Option<&Path>, check: Check<'_>) -> Result<Self> {
        // The name of a socket has at most 107 bytes, ssh adds 17 of its own for a moment.
        let near = tempfile::Builder::new().prefix("rl-").tempdir().context("make a directory")?;
        let files = Files::new(near.path(), 0);
        let mut command = ssh(near.path(), config);
        command.args(["-o", "ControlMaster=yes"]);
        command.args(["-o", &format!("ConnectTimeout={CONNECT_TIMEOUT_S}")]);
        command.args(["-o", &format!("ServerAliveInterval={ALIVE_S}")]);
        command.args(["-o", &format!("ServerAliveCountMax={ALIVE_COUNT}")]);
        command.args(["-o", "ControlPersist=no", "-o", "ClearAllForwardings=yes"]);
        let child = start(command.args(address.words()).arg(KEEP), &files)?;
        let mut master = Master { child, files, obeys: false };
        let far = master.hello(address, config, check)?;
        let (address, config) = (address.clone(), config.map(Path::to_path_buf));
        Ok(Self { address, config, master, far, near, commands: 0, lost: false })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it still is there, as far as ssh knows.
    pub(crate) fn is_open(&mut self) -> Result<bool> {
        Ok(!self.lost && self.master.child.poll().context("look after ssh")?.is_none())
    }

    /// Runs a script of sh in the guest and returns what it printed.
    ///
    /// # Errors
    /// If it fails, takes too long, or the connection is lost.
    pub(crate) fn run(&mut self, script: &str, check: Check<'_>) -> Result<String> {
        let output = self.obey("sh -s", script.as_bytes(), check)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Writes a file in our directory in the guest.
    ///
    /// # Errors
    /// As `run`.
    pub(crate) fn put(&mut self, name: &str, bytes: &[u8], check: Check<'_>) -> Result<()> {
        let order = format!("cat >{}/{name}", self.far);
        self.obey(&order, bytes, check).with_context(|| format!("write {name}")).map(drop)
    }

    /// Starts a script that was `put`, with words that no shell changes. It must end when its input does.
    ///
    /// # Errors
    /// If ssh cannot be started.
    pub(crate) fn start(&mut self, script: &str, words: &[String]) -> Result<Remote> {
        let order = format!("sh {}/{script} {}", self.far, words.join(" "));
        let (child, files) = self.session(&order)?;
        Ok(Remote::new(child, files))
    }

    /// Notes that a command ended with ssh's own status; what to say of it.
    pub(crate) fn lost(&mut self, said: &str) -> anyhow::Error {
        self.lost = true;
        let own = self.master.files.said();
        let said = [own.as_str(), said].into_iter().find(|it| !it.trim().is_empty());
        trouble::lost(&self.address, said.unwrap_or_default())
    }

    /// An order that reads `input` to its end.
    fn obey(&mut self, order: &str, input: &[u8], check: Check<'_>) -> Result<Vec<u8>> {
        let (child, files) = self.session(order)?;
        let mut remote = Remote::new(child, files);
        remote.feed(input).with_context(|| format!("order to {}", self.address))?;
        let ended = remote.wait(COMMAND_LIMIT, check)?;
        let Some(ended) = ended else {
            bail!("{} has not obeyed for {} s", self.address, COMMAND_LIMIT.as_secs());
        };
        if ended.status.code() == Some(SSH_FAILED) {
            return Err(self.lost(&ended.said));
        }
        let said = ended.said.trim();
        ensure!(ended.status.success(), "{}: {}: {said}", self.address, ended.status);
        Ok(ended.output)
    }

    fn session(&mut self, order: &str) -> Result<(Supervised, Files)> {
        self.commands += 1;
        let files = Files::new(self.near.path(), self.commands);
        let mut command = ssh(self.near.path(), self.config.as_deref());
        command.args(["-o", "ControlMaster=no"]).args(self.address.words()).arg(order);
        Ok((start(&mut command, &files)?, files))
    }
}

/// The ssh that has the connection. Its command in the guest ends with its input, and so does it.
#[derive(Debug)]
struct Master {
    child: Supervised,
    files: Files,
    /// Whether the guest has said hello, so that it hears the end of the input.
    obeys: bool,
}

impl Master {
    /// Waits until the guest obeys; returns the name of our directory there.
    fn hello(
        &mut self,
        address: &Address,
        config: Option<&Path>,
        check: Check<'_>,
    ) -> Result<String> {
        let begun = clock::now();
        loop {
            check()?;
            let printed = std::fs::read(&self.files.out).context("read what ssh printed")?;
            if let Some(directory) = directory_in(&String::from_utf8_lossy(&printed)) {
                self.obeys = true;
                return Ok(directory);
            }
            if let Some(status) = self.child.poll().context("look after ssh")? {
                let said = self.files.said();
                if status.code() == Some(SSH_FAILED) {
                    return Err(trouble::refused(address, config, &said));
                }
                let said = said.trim();
                bail!("{address} does not obey: sh and mktemp are needed there ({status}: {said})");
            }
            ensure!(
                begun.elapsed() < CONNECT_LIMIT,
                "{address} has not answered for {} s",
                CONNECT_LIMIT.as_secs()
            );
            clock::pause(LOOK);
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        if !self.obeys {
            // It can fail only if the process is gone already, and nobody is left to tell.
            let _gone = self.child.child().kill();
        }
    }
}

/// A greeting may stand before it. Only a name that no shell takes for something else is trusted.
fn directory_in(printed: &str) -> Option<String> {
    let complete = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut names = complete.filter_map(|line| line.trim().strip_prefix(HELLO));
    let harmless = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_name = |name: &&str| name.starts_with('/') && name.chars().all(harmless);
    names.next().map(str::trim).filter(is_name).map(str::to_owned)
}

/// Where a command's output goes: files, so that a full pipe never stops it.
#[derive(Debug)]
struct Files {
    out: PathBuf,
    err: PathBuf,
}

impl Files {
    fn new(directory: &Path, number: u32) -> Self {
        let name = |end: &str| directory.join(format!("{number}.{end}"));
        Self { out: name("out"), err: name("err") }
    }

    /// What ssh complained about.
    fn said(&self) -> String {
        let bytes = std::fs::read(&self.err).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in [&self.out, &self.err] {
            // The directory goes soon, and what is left in it as well.
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// ssh with what all of our calls have in common. The rest is up to the user's configuration.
fn ssh(directory: &Path, config: Option<&Path>) -> Command {
    let mut command = Command::new("ssh");
    if let Some(config) = config {
        command.arg("-F").arg(config);
    }
    command.arg("-S").arg(directory.join("s"));
    command.args(["-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]);
    command
}

fn start(command: &mut Command, files: &Files) -> Result<Supervised> {
    let create =
        |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
    command.stdin(Stdio::piped()).stdout(create(&files.out)?).stderr(create(&files.err)?);
    Supervised::start(command, Request::EndInput, END_LIMIT).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return anyhow!(
                "the program ssh is not installed: --guest ssh://… needs the package openssh-client"
            );
        }
        anyhow::Error::from(error).context("start ssh")
    })
}

/// Writes all of a child's input and closes it.
fn feed(stdin: Option<ChildStdin>, bytes: &[u8]) -> io::Result<()> {
    let Some(mut stdin) = stdin else { return Ok(()) };
    match stdin.write_all(bytes) {
        // It has ended already; its status says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_directory_is_found_behind_a_greeting() {
        for (printed, expected) in [
            ("ringloom-is-at /tmp/tmp.aB3\n", Some("/tmp/tmp.aB3")),
            ("Welcome!\r\nringloom-is-at /tmp/x\r\n", Some("/tmp/x")),
            ("ringloom-is-at /tmp/tmp.aB", None),
            ("ringloom-is-at \n", None),
            ("ringloom-is-at /tmp/a b\n", None),
            ("ringloom-is-at /tmp/$(x)\n", None),
            ("", None),
        ] {
            assert_eq!(directory_in(printed).as_deref(), expected, "{printed:?}");
        }
    }

    #[test]
    fn the_greeting_is_the_one_that_is_looked_for() {
        assert!(KEEP.contains(&format!("echo \"{HELLO} $d\"")));
    }
}
