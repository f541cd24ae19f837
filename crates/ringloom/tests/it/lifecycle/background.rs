//! `--daemonize` and `--pidfile`.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Daemon, Exit, Program, STOP_LIMIT, is_listening};

use super::{REFUSAL_LIMIT, ensure_gone, pid_in, use_disk};
use crate::support::{ringloom, with};

const NODE: &str = "driver=file,node-name=f0,filename=disk.img";
const EXPORT: &str =
    "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=e0.sock,writable=on";

/// A directory with an image, and the program started in it: every path below is relative.
struct Place {
    bench: Bench,
    program: Program,
}

impl Place {
    fn new(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        image::create_filled(&bench.path("disk.img"), 1 << 20, 0x91)?;
        let program = program.clone().in_directory(bench.path(""));
        Ok(Self { bench, program })
    }

    fn run(&self, line: &[&str]) -> Result<Exit> {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        self.program.refusal(&words, REFUSAL_LIMIT)
    }

    /// Starts a daemon that must come up.
    fn daemon(&self, socket: &str, pidfile: &str) -> Result<Daemon> {
        let export = EXPORT.replace("e0.sock", socket);
        let line = ["--blockdev", NODE, "--export", &export, "--pidfile", pidfile, "--daemonize"];
        let exit = self.run(&line)?;
        let daemon = Daemon::from_pidfile(&self.bench.path(pidfile))
            .with_context(|| format!("the parent's verdict: {exit:?}"))?;
        ensure!(exit.status.code() == Some(0), "the parent's verdict: {exit:?}");
        let listens = is_listening(&self.bench.path(socket))?;
        ensure!(listens, "the parent exited before the daemon listened");
        Ok(daemon)
    }

    /// A line that must fail with this sentence, and leave neither socket nor pidfile.
    fn refuse(&self, line: &[&str], named: &[&str]) -> Result<()> {
        let exit = self.run(line)?;
        ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
        for name in named {
            ensure!(exit.stderr.contains(name), "{line:?}: {name:?} is not in {}", exit.stderr);
        }
        ensure!(!exit.stderr.contains("panicked"), "{line:?}: {}", exit.stderr);
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.bench.path("e0.sock")
    }
}

fn wait_for_end(daemon: &Daemon) -> Result<()> {
    daemon.terminate()?;
    poll_until("the daemon to end", STOP_LIMIT, || Ok((!daemon.is_alive()).then_some(())))
}

/// One of the links in /proc/<pid>.
fn link(pid: u32, name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/proc/{pid}/{name}"));
    path.read_link().with_context(|| format!("read {}", path.display()))
}

/// The session of a process: the sixth field of /proc/<pid>/stat, the fourth after the name in parentheses.
fn session(pid: u32) -> Result<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read stat")?;
    let (_, rest) = stat.rsplit_once(')').context("a name in parentheses")?;
    let field = rest.split_whitespace().nth(3).context("the session")?;
    field.parse().with_context(|| format!("session {field}"))
}

#[test]
fn a_daemon_has_left_terminal_and_directory_when_its_parent_exits() {
    with(&ringloom(), |program| {
        let place = Place::new(program)?;
        let daemon = place.daemon("e0.sock", "pid")?;
        let pid = daemon.pid();
        ensure!(session(pid)? == pid, "session {} of process {pid}", session(pid)?);
        ensure!(link(pid, "cwd")? == Path::new("/"), "its directory is {:?}", link(pid, "cwd")?);
        for stream in ["fd/0", "fd/1", "fd/2"] {
            let target = link(pid, stream)?;
            ensure!(target == Path::new("/dev/null"), "{stream} is {}", target.display());
        }
        let executable = link(pid, "exe")?;
        ensure!(executable.ends_with("ringloom"), "the pidfile names {}", executable.display());
        use_disk(&place.socket(), 0x11)?;
        wait_for_end(&daemon)?;
        ensure_gone(&[&place.socket(), &place.bench.path("pid")])?;
        let found = std::fs::read(place.bench.path("disk.img")).context("read the image")?;
        ensure!(found[8192..12288] == [0x11; 4096], "the write is lost");
        Ok(())
    });
}

/// The verdict comes neither early nor late, many times over.
#[test]
fn each_parent_exits_when_the_socket_accepts() {
    with(&ringloom(), |program| {
        let place = Place::new(program)?;
        for round in 0..10_u8 {
            let daemon = place.daemon("e0.sock", "pid")?;
            use_disk(&place.socket(), round).with_context(|| format!("round {round}"))?;
            wait_for_end(&daemon)?;
        }
        Ok(())
    });
}

#[test]
fn what_fails_before_or_after_the_fork_fails_the_parent() {
    with(&ringloom(), |program| {
        let place = Place::new(program)?;
        let missing = NODE.replace("disk.img", "absent.img");
        let line = ["--daemonize", "--pidfile", "pid", "--blockdev", &missing];
        place.refuse(&line, &["absent.img", "No such file"])?;
        let nowhere = EXPORT.replace("e0.sock", "absent/e0.sock");
        place.refuse(
            &["--daemonize", "--pidfile", "pid", "--blockdev", NODE, "--export", &nowhere],
            &["absent/e0.sock", "No such file"],
        )?;
        drop(UnixListener::bind(place.bench.path("taken")).context("make a stale socket")?);
        for pidfile in ["absent/pid", "/", "taken"] {
            place.refuse(
                &["--daemonize", "--pidfile", pidfile, "--blockdev", NODE, "--export", EXPORT],
                &["pidfile", pidfile],
            )?;
        }
        ensure!(place.bench.path("taken").exists(), "a socket was taken for a pidfile");
        ensure_gone(&[&place.socket(), &place.bench.path("pid")])
    });
}

#[test]
fn a_pidfile_of_a_live_daemon_is_refused_and_stays() {
    with(&ringloom(), |program| {
        let place = Place::new(program)?;
        let daemon = place.daemon("e0.sock", "pid")?;
        let other = EXPORT.replace("e0", "e1");
        let node = "driver=null-co,node-name=f0,size=1048576";
        for way in [&["--daemonize"][..], &[]] {
            let line = ["--pidfile", "pid", "--blockdev", node, "--export", &other];
            place
                .refuse(&[way, &line].concat(), &["pidfile ", "pid is locked by a live process"])?;
            ensure_gone(&[&place.bench.path("e1.sock")])?;
        }
        ensure!(pid_in(&place.bench.path("pid"))? == daemon.pid(), "the pidfile was overwritten");
        let mut client = Client::connect(&place.socket(), Shape::small())?;
        client.read(0, 4096, 0)?;
        drop(client);
        wait_for_end(&daemon)?;
        ensure_gone(&[&place.bench.path("pid")])
    });
}

#[test]
fn a_stale_pidfile_is_replaced() {
    with(&ringloom(), |program| {
        let place = Place::new(program)?;
        let pidfile = place.bench.path("pid");
        std::fs::write(&pidfile, "4194303 0000000000000000\n").context("a stale pidfile")?;
        let daemon = place.daemon("e0.sock", "pid")?;
        let text = std::fs::read_to_string(&pidfile).context("read the pidfile")?;
        ensure!(text == format!("{}\n", daemon.pid()), "the pidfile holds {text:?}");
        wait_for_end(&daemon)?;
        ensure_gone(&[&pidfile])
    });
}
