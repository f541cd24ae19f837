//! The fences around a running daemon, seen from outside: on every thread, on hosts that lack one, and around the
//! places that a command line can name.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Daemon, Program, STOP_LIMIT, Server};

use crate::support::{Disk, Iothreads, is_root, ringloom, serve, stop, with};

const IMAGE_BYTES: usize = 1 << 20;
const REFUSAL_LIMIT: Duration = Duration::from_secs(20);

/// What a thread may still do (proc_pid_status(5)).
#[derive(Debug)]
struct Rights {
    thread: String,
    capabilities: Vec<u64>,
    no_new_privileges: bool,
    filters: usize,
}

impl Rights {
    fn parse(status: &str) -> Result<Self> {
        let field = |name: &str| {
            let of_line = |line: &str| Some(line.strip_prefix(name)?.trim().to_owned());
            status.lines().find_map(of_line).with_context(|| format!("{name} in {status}"))
        };
        let set = |name: &str| Ok(u64::from_str_radix(&field(name)?, 16)?);
        // Without the right to change it the bounding set stays, and is worthless.
        let mut names = vec!["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"];
        if is_root() {
            names.push("CapBnd:");
        }
        Ok(Self {
            thread: field("Name:")?,
            capabilities: names.into_iter().map(set).collect::<Result<_>>()?,
            no_new_privileges: field("NoNewPrivs:")? == "1",
            filters: field("Seccomp_filters:")?.parse()?,
        })
    }

    fn of_all(pid: u32) -> Result<Vec<Self>> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("list the threads")?;
        let mut found = Vec::new();
        for task in tasks {
            // A thread that ends meanwhile has no rights any more.
            if let Ok(status) = std::fs::read_to_string(task?.path().join("status")) {
                found.push(Self::parse(&status)?);
            }
        }
        Ok(found)
    }

    fn are_none(&self) -> bool {
        self.no_new_privileges && self.filters >= 3 && self.capabilities.iter().all(|it| *it == 0)
    }
}

/// Every thread of a daemon at work, and those that it starts for it.
fn check_threads(program: &Program, aio: Option<&str>, direct: &str) -> Result<()> {
    let bench = Bench::new()?;
    let mut disk = Disk::new(&bench, "e0", 2);
    (disk.iothreads, disk.aio, disk.direct) = (Iothreads::Two, aio, direct);
    disk.create(IMAGE_BYTES, 0x5a)?;
    let server = disk.serve(program)?;
    let mut client = Client::connect(&disk.socket(), Shape::small())?;
    client.write(8192, &[0x5b; 4096], 0)?;
    client.flush()?;
    let threads = Rights::of_all(server.pid())?;
    let has = |name: &str| threads.iter().any(|it| it.thread.starts_with(name));
    for name in ["ringloom", "IO t0", "IO t1", "export e0"] {
        ensure!(has(name), "no thread {name} in {threads:?}");
    }
    ensure!(has("IO worker") || aio != Some("threads"), "no workers in {threads:?}");
    let free: Vec<&Rights> = threads.iter().filter(|it| !it.are_none()).collect();
    ensure!(free.is_empty(), "threads that are free: {free:?}");
    drop(client);
    stop(server, &[&disk.socket()]).map(drop)
}

#[test]
fn no_thread_has_any_rights_left_whatever_engine_it_uses() {
    with(&ringloom(), |program| {
        check_threads(program, None, "on")?;
        check_threads(program, Some("native"), "on")?;
        check_threads(program, Some("threads"), "off")
    });
    with(&ringloom().without_io_uring(), |program| {
        check_threads(program, None, "on")?;
        check_threads(program, None, "off")
    });
}

/// A disk served with these options besides.
fn start(program: &Program, disk: &Disk<'_>, more: &[&str]) -> Result<Server> {
    let mut arguments: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
    arguments.extend(disk.arguments());
    program.start(&arguments, &[disk.socket()])
}

fn use_disk(socket: &Path) -> Result<()> {
    let mut client = Client::connect(socket, Shape::small())?;
    client.write(8192, &[0x77; 4096], 0)?;
    client.flush()?;
    ensure!(client.read(8192, 4096, 65_536)? == [0x77; 4096], "other bytes came back");
    Ok(())
}

#[test]
fn off_leaves_every_thread_its_rights() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(IMAGE_BYTES, 0x5c)?;
        let server = start(program, &disk, &["--sandbox", "off"])?;
        use_disk(&disk.socket())?;
        for rights in Rights::of_all(server.pid())? {
            ensure!(!rights.no_new_privileges && rights.filters == 0, "{rights:?}");
            ensure!(!is_root() || rights.capabilities.iter().any(|it| *it != 0), "{rights:?}");
        }
        let log = stop(server, &[&disk.socket()])?;
        ensure!(!log.contains("sandbox"), "{log}");
        Ok(())
    });
}

/// On such a host the daemon says what is missing and serves, unless it must not.
#[track_caller]
fn check_without(program: &Program, said: &str, then: &str) {
    with(program, |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(IMAGE_BYTES, 0x5d)?;
        let server = start(program, &disk, &[])?;
        use_disk(&disk.socket())?;
        let log = stop(server, &[&disk.socket()])?;
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        let [warning] = warnings.as_slice() else { anyhow::bail!("not one warning: {log}") };
        ensure!(warning.contains(said) && warning.contains("without this fence"), "{warning}");
        ensure!(log.contains(then), "{then:?} is not in {log}");
        let mut line = vec!["--sandbox".to_owned(), "on".to_owned()];
        line.extend(disk.arguments());
        let exit = program.refusal(&line, REFUSAL_LIMIT)?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        ensure!(exit.stderr.contains(said), "{said:?} is not in {}", exit.stderr);
        ensure!(!disk.socket().exists(), "its socket is left behind");
        Ok(())
    });
}

#[test]
fn a_host_without_landlock_is_told_of_and_served_on() {
    let then = "sandbox: no file can be opened, no capabilities, system calls filtered";
    check_without(&ringloom().without_landlock(), "this kernel has no landlock", then);
}

#[test]
fn a_host_without_filters_is_told_of_and_served_on() {
    let said = "this kernel takes no filters of system calls";
    check_without(&ringloom().without_seccomp(), said, "no capabilities, system calls unfiltered");
}

/// Links, relative names and the background: whatever way a place is named, it can be used to the end.
#[test]
fn places_named_by_links_and_relative_paths_are_used_to_the_end() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        for name in ["pool", "images", "run"] {
            std::fs::create_dir(bench.path(name)).context("make a directory")?;
        }
        image::create_filled(&bench.path("pool/real.img"), IMAGE_BYTES, 0x5e)?;
        symlink("../pool/real.img", bench.path("images/disk.img")).context("link the image")?;
        symlink("run", bench.path("sockets")).context("link the directory")?;
        let program = program.clone().in_directory(bench.path("images"));
        let line = [
            "--blockdev",
            "file,node-name=n,filename=disk.img,discard=unmap",
            "--export",
            "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path=../sockets/e0.sock,writable=on",
            "--pidfile",
            "../run/pid",
            "--daemonize",
            "--sandbox",
            "on",
        ];
        let exit = program.refusal(&line.map(str::to_owned), REFUSAL_LIMIT)?;
        ensure!(exit.status.code() == Some(0), "{exit:?}");
        let daemon = Daemon::from_pidfile(&bench.path("run/pid"))?;
        let threads = Rights::of_all(daemon.pid())?;
        ensure!(threads.iter().all(Rights::are_none), "{threads:?}");
        use_disk(&bench.path("run/e0.sock"))?;
        daemon.terminate()?;
        poll_until("the daemon to end", STOP_LIMIT, || Ok((!daemon.is_alive()).then_some(())))?;
        for name in ["run/pid", "run/e0.sock"] {
            ensure!(!bench.path(name).exists(), "{name} is left behind");
        }
        Ok(())
    });
}

/// A client that connects as soon as it can is served behind the fences, not before.
#[test]
fn nobody_is_served_before_the_fences_are_up() {
    with(&ringloom(), |program| {
        for round in 0..10_u8 {
            let bench = Bench::new()?;
            let disk = Disk::new(&bench, "e0", 1);
            disk.create(IMAGE_BYTES, u64::from(round))?;
            let server = serve(program, std::slice::from_ref(&disk))?;
            use_disk(&disk.socket())?;
            let threads = Rights::of_all(server.pid())?;
            ensure!(threads.iter().all(Rights::are_none), "round {round}: {threads:?}");
            stop(server, &[&disk.socket()])?;
        }
        Ok(())
    });
}

/// Nobody needs to be root, and nothing fails if one is not.
#[test]
fn a_user_without_any_capability_has_the_same_fences() {
    if !is_root() {
        // All other tests show it.
        return;
    }
    let without = "--bounding-set=-all --inh-caps=-all --ambient-caps=-all";
    let binary = env!("CARGO_BIN_EXE_ringloom");
    let words: Vec<&str> = without.split(' ').chain([binary, "serve"]).collect();
    with(&Program::named("setpriv", "setpriv", &words), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(IMAGE_BYTES, 0x5f)?;
        let server = start(program, &disk, &["--sandbox", "on"])?;
        use_disk(&disk.socket())?;
        let threads = Rights::of_all(server.pid())?;
        ensure!(threads.iter().all(Rights::are_none), "{threads:?}");
        stop(server, &[&disk.socket()]).map(drop)
    });
}
