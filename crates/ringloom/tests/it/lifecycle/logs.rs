//! Where the log goes: a file that is rotated, the host's journal or syslog, and a stderr that nobody reads any more.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Daemon, Program, STOP_LIMIT, Server, Signal};
use testkit::report::skipped;

use super::{REFUSAL_LIMIT, use_disk};
use crate::support::{is_root, ringloom, with};

/// A daemon in the background.
struct Background {
    daemon: Daemon,
    /// What its parent said.
    said: String,
    bench: Bench,
}

impl Background {
    /// Serves a disk with these options more; relative paths are below the bench.
    fn start(program: &Program, more: &[&str]) -> Result<Self> {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("d.img"), 1 << 20)?;
        std::fs::create_dir(bench.path("logs")).context("make a directory for logs")?;
        let program = program.clone().in_directory(bench.path(""));
        let line = ["d.img", "--socket", "d.sock", "--daemonize", "--pidfile", "pid"];
        let line: Vec<String> = line.iter().chain(more).map(|word| (*word).to_owned()).collect();
        let exit = program.refusal(&line, REFUSAL_LIMIT)?;
        ensure!(exit.status.success(), "{exit:?}");
        let daemon = Daemon::from_pidfile(&bench.path("pid"))?;
        Ok(Self { daemon, said: exit.stderr, bench })
    }

    fn signal(&self, name: &str) -> Result<()> {
        let pid = self.daemon.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().context("kill(1)")?;
        ensure!(status.success(), "kill: {status}");
        Ok(())
    }

    fn wait_for(&self, file: &str, text: &str) -> Result<()> {
        let path = self.bench.path(file);
        poll_until(&format!("{text:?} in {file}"), STOP_LIMIT, || {
            match std::fs::read_to_string(&path) {
                Ok(found) => Ok(found.contains(text).then_some(())),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).context("read the log"),
            }
        })
    }

    fn use_disk(&self) -> Result<()> {
        use_disk(&self.bench.path("d.sock"), 0x31)
    }

    fn end(&self) -> Result<()> {
        self.daemon.terminate()?;
        poll_until("the daemon to end", STOP_LIMIT, || Ok((!self.daemon.is_alive()).then_some(())))
    }
}

#[test]
fn a_log_file_has_all_that_is_said_in_the_background_with_the_time() {
    with(&ringloom(), |program| {
        let served = Background::start(program, &["--log-file", "logs/a.log"])?;
        ensure!(served.said.contains("listening"), "the start is not seen: {}", served.said);
        served.use_disk()?;
        served.wait_for("logs/a.log", "the client has left")?;
        served.end()?;
        served.wait_for("logs/a.log", "SIGTERM: stopping")?;
        let found = std::fs::read_to_string(served.bench.path("logs/a.log")).context("the log")?;
        for line in found.lines() {
            // 2026-11-23T08:42:27.123456Z  INFO …
            let time = line.split(' ').next().unwrap_or_default();
            let is_time = time.len() == 27 && time.ends_with('Z') && &time[10..11] == "T";
            ensure!(is_time, "a line without time: {line:?}");
        }
        Ok(())
    });
}

/// logrotate moves the file and sends SIGHUP (`create`), or copies it and cuts it off (`copytruncate`).
#[test]
fn a_log_file_is_rotated_both_ways_behind_the_fences() {
    with(&ringloom(), |program| {
        let served = Background::start(program, &["--log-file", "logs/a.log", "--sandbox", "on"])?;
        let path = |name: &str| served.bench.path(name);
        std::fs::rename(path("logs/a.log"), path("logs/a.log.1")).context("move the log")?;
        served.signal("HUP")?;
        served.wait_for("logs/a.log", "is opened anew")?;
        served.use_disk()?;
        served.wait_for("logs/a.log", "the client has left")?;
        let old = std::fs::read_to_string(path("logs/a.log.1")).context("the old log")?;
        ensure!(!old.contains("the client has left"), "still in the old file: {old}");
        let log = OpenOptions::new().write(true).open(path("logs/a.log"));
        log.and_then(|log| log.set_len(0)).context("cut the log off")?;
        served.use_disk()?;
        served.wait_for("logs/a.log", "the client has left")?;
        let found = std::fs::read(path("logs/a.log")).context("the log")?;
        ensure!(found.first().is_some_and(|byte| *byte != 0), "a hole: {found:?}");
        served.end()
    });
}

/// Beside a disk the sandbox lets nobody make or write a file.
#[test]
fn a_log_file_that_cannot_be_made_anew_is_said_in_the_old_one() {
    with(&ringloom(), |program| {
        let served = Background::start(program, &["--log-file", "a.log", "--sandbox", "on"])?;
        let path = |name: &str| served.bench.path(name);
        std::fs::rename(path("a.log"), path("a.log.1")).context("move the log")?;
        served.signal("HUP")?;
        served.wait_for("a.log.1", "cannot open it: Permission denied")?;
        served.use_disk()?;
        served.wait_for("a.log.1", "the client has left")?;
        ensure!(!path("a.log").exists(), "a file was made beside a disk");
        served.end()
    });
}

#[test]
fn a_log_file_that_cannot_be_opened_is_refused() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let log = bench.text("absent/a.log");
        for more in [&["--daemonize"][..], &[]] {
            let line = ["--blockdev", "null-co,node-name=n", "--log-file", &log];
            let line: Vec<String> = line.iter().chain(more).map(|it| (*it).to_owned()).collect();
            let exit = program.refusal(&line, REFUSAL_LIMIT)?;
            let said = format!("log file {log}: cannot open it: No such file");
            ensure!(exit.status.code() == Some(1) && exit.stderr.contains(&said), "{exit:?}");
        }
        Ok(())
    });
}

/// What ends the start is on the terminal and in the log.
#[test]
fn an_error_of_the_start_is_in_the_log_too() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let export = "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=/absent/s";
        for (name, more) in [("a.log", &["--daemonize"][..]), ("b.log", &[])] {
            let log = bench.text(name);
            let line =
                ["--blockdev", "null-co,node-name=n", "--export", export, "--log-file", &log];
            let line: Vec<String> = line.iter().chain(more).map(|it| (*it).to_owned()).collect();
            let exit = program.refusal(&line, REFUSAL_LIMIT)?;
            let said = "export e: socket /absent/s: cannot open its directory: No such file";
            ensure!(exit.stderr.contains(said), "{exit:?}");
            let found = std::fs::read_to_string(bench.path(name)).context("the log")?;
            ensure!(found.matches(said).count() == 1, "{found}");
        }
        Ok(())
    });
}

/// A terminal that was closed, a pipe whose reader has ended, a disk that is full.
#[test]
fn a_stderr_that_cannot_be_written_ends_nothing() {
    for stderr in ["2>/dev/full", "2>&-", "2>&1 | head -c 1"] {
        let script = format!("\"$0\" serve \"$@\" {stderr}");
        let program =
            Program::named("ringloom", "sh", &["-c", &script, env!("CARGO_BIN_EXE_ringloom")]);
        with(&program, |program| {
            let bench = Bench::new()?;
            let socket = bench.path("e0.sock");
            let export = format!(
                "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={}",
                socket.display()
            );
            let line = [
                "--blockdev",
                "null-co,node-name=n,size=1048576",
                "--export",
                &export,
                "--pidfile",
                &bench.text("pid"),
            ]
            .map(str::to_owned);
            let mut shell = program.start(&line, std::slice::from_ref(&socket))?;
            // It is there before it is written.
            let daemon = poll_until("the pidfile", STOP_LIMIT, || {
                Ok(Daemon::from_pidfile(&bench.path("pid")).ok())
            })?;
            for _ in 0..3 {
                // Each client makes lines.
                Client::connect(&socket, Shape::small())?.read(0, 4096, 0)?;
            }
            daemon.terminate()?;
            let status = shell.wait(STOP_LIMIT)?;
            ensure!(status.success(), "{stderr}: {status}");
            ensure!(!socket.exists(), "{stderr}: it did not end in good order");
            Ok(())
        });
    }
}

/// A journal that hangs, a supervisor that is stopped, a disk that the log is on.
#[test]
fn a_log_whose_reader_stands_still_keeps_nobody_waiting() {
    let script = "exec \"$0\" serve \"$@\" 2>\"$FIFO\"";
    let program = Program::named("ringloom", "sh", &["-c", script, env!("CARGO_BIN_EXE_ringloom")]);
    with(&program, |program| {
        let bench = Bench::new()?;
        let fifo = bench.path("stderr");
        let status = Command::new("mkfifo").arg(&fifo).status().context("mkfifo(1)")?;
        ensure!(status.success(), "mkfifo: {status}");
        let open = |read: bool, write: bool| {
            let mut options = OpenOptions::new();
            options.read(read).write(write).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            options.open(&fifo).context("open the pipe")
        };
        let mut reader = open(true, false)?;
        let socket = bench.path("e0.sock");
        let export = format!(
            "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={}",
            socket.display()
        );
        let line =
            ["--blockdev", "null-co,node-name=n,size=1048576,read-only=on", "--export", &export];
        let program = program.clone().with_variable("FIFO", &bench.text("stderr"));
        let mut server = program.start(&line.map(str::to_owned), std::slice::from_ref(&socket))?;
        let mut said = Vec::new();
        poll_until("it to listen", STOP_LIMIT, || {
            // Nothing more is there just now.
            drop(reader.read_to_end(&mut said));
            Ok(String::from_utf8_lossy(&said).contains("listening").then_some(()))
        })?;
        let mut writer = open(false, true)?;
        let full = std::iter::repeat_with(|| writer.write(&[b'\n'; 512])).find_map(Result::err);
        ensure!(full.is_some_and(|error| error.kind() == ErrorKind::WouldBlock), "not full");
        for _ in 0..3 {
            let mut client = Client::connect(&socket, Shape::small())?;
            client.read(0, 4096, 0)?;
            // Refused, which is said by the iothread.
            ensure!(client.write(0, &[1; 512], 0).is_err(), "a read-only disk was written");
            client.read(0, 4096, 0)?;
        }
        server.signal(Signal::TERM)?;
        let status = server.wait(STOP_LIMIT)?;
        ensure!(status.success() && !socket.exists(), "{status}");
        said.clear();
        drop(writer);
        reader.read_to_end(&mut said).context("read what was said")?;
        let said = String::from_utf8_lossy(&said);
        ensure!(!said.contains("SIGTERM"), "there was room: {said}");
        Ok(())
    });
}

/// A host whose /run and /dev are these of the bench, with what a log is made of.
fn host(bench: &Bench) -> Result<Program> {
    std::fs::create_dir_all(bench.path("run/systemd/journal")).context("make /run")?;
    std::fs::create_dir_all(bench.path("dev")).context("make /dev")?;
    std::fs::write(bench.path("dev/null"), "").context("make /dev/null")?;
    let script = "mount --bind /dev/null \"$PLACE/dev/null\" && mount --rbind \"$PLACE/dev\" /dev && \
                  mount --bind \"$PLACE/run\" /run && exec \"$0\" serve \"$@\"";
    let words = ["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_ringloom")];
    let program = Program::named("ringloom", "unshare", &words);
    Ok(program.with_variable("PLACE", &bench.text("")))
}

/// Starts a daemon there, has it say something, ends it; gives what its parent said.
fn serve_on(bench: &Bench) -> Result<(Daemon, String)> {
    let socket = bench.path("e0.sock");
    let export =
        format!("vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={}", socket.display());
    let pidfile = bench.text("pid");
    let node = "null-co,node-name=n,size=1048576";
    let line = ["--blockdev", node, "--export", &export, "--daemonize", "--pidfile", &pidfile];
    let exit = host(bench)?.refusal(&line.map(str::to_owned), REFUSAL_LIMIT)?;
    ensure!(exit.status.success(), "{exit:?}");
    let daemon = Daemon::from_pidfile(&bench.path("pid"))?;
    Client::connect(&socket, Shape::small())?.read(0, 4096, 0)?;
    daemon.terminate()?;
    poll_until("the daemon to end", STOP_LIMIT, || Ok((!daemon.is_alive()).then_some(())))?;
    Ok((daemon, exit.stderr))
}

/// All that was sent.
fn received(socket: &UnixDatagram) -> Result<Vec<Vec<u8>>> {
    socket.set_nonblocking(true).context("look into the socket")?;
    let mut found = Vec::new();
    let mut datagram = [0; 4096];
    while let Ok(bytes) = socket.recv(&mut datagram) {
        found.push(datagram[..bytes].to_vec());
    }
    Ok(found)
}

#[test]
fn without_a_log_file_a_daemon_in_the_background_is_heard_by_journal_or_syslog() {
    if !is_root() {
        skipped("another /run and /dev need root");
        return;
    }
    with(&ringloom(), |_| {
        for (place, is_journal) in [("run/systemd/journal/socket", true), ("dev/log", false)] {
            let bench = Bench::new()?;
            for directory in ["run/systemd/journal", "dev"] {
                std::fs::create_dir_all(bench.path(directory)).context("make a directory")?;
            }
            let listener = UnixDatagram::bind(bench.path(place)).context("listen for the log")?;
            let (daemon, said) = serve_on(&bench)?;
            ensure!(said.contains("listening"), "{said}");
            let heard = received(&listener)?;
            let expect = |severity: u8, text: &str| {
                let prefix = if is_journal {
                    format!("PRIORITY={severity}\nSYSLOG_IDENTIFIER=ringloom\nMESSAGE\n")
                } else {
                    format!("<{}>ringloom[{}]: ", 24 + severity, daemon.pid())
                };
                let there = heard.iter().any(|it| {
                    let text_of = String::from_utf8_lossy(it);
                    it.starts_with(prefix.as_bytes()) && text_of.contains(text)
                });
                ensure!(there, "{prefix:?} … {text:?} is not in {heard:?}");
                Ok(())
            };
            expect(6, "export e0: listening")?;
            expect(6, "export e0: the client has left")?;
            expect(6, "SIGTERM: stopping")?;
        }
        Ok(())
    });
}

#[test]
fn a_host_without_journal_and_syslog_is_told_of_before_the_log_is_lost() {
    if !is_root() {
        skipped("another /run and /dev need root");
        return;
    }
    with(&ringloom(), |_| {
        let (_, said) = serve_on(&Bench::new()?)?;
        ensure!(said.contains("no journal and no syslog") && said.contains("--log-file"), "{said}");
        Ok(())
    });
}

/// Lines for programs, as much as each part is asked for, at the start and at run time.
#[test]
fn a_log_of_json_says_as_much_as_its_parts_are_asked_for() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("e0.sock");
        let export = format!(
            "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={}",
            socket.display()
        );
        let node = "null-co,node-name=n,size=1048576";
        let mut line: Vec<String> =
            ["--blockdev", node, "--export", &export].map(str::to_owned).into();
        line.extend(["--log-format=json", "--log-level=warn"].map(str::to_owned));
        line.extend(["--log-level=exports=info", "--log-level=monitor=info"].map(str::to_owned));
        line.extend(crate::control::monitor(&bench));
        let monitor = crate::control::monitor_socket(&bench);
        let mut server = program.start(&line, &[socket.clone(), monitor.clone()])?;
        let visit = || Client::connect(&socket, Shape::small())?.read(0, 4096, 0).map(drop);
        let has_left =
            |times: usize| move |log: &str| log.matches("the client has left").count() >= times;
        let wait = |server: &Server, what: &str, is_there: &dyn Fn(&str) -> bool| {
            poll_until(what, STOP_LIMIT, || Ok(is_there(&server.log()).then_some(())))
        };
        visit()?;
        wait(&server, "the client to be told of", &has_left(1))?;
        let mut qmp = testkit::qmp::QmpClient::connect(&monitor)?;
        let set = |qmp: &mut testkit::qmp::QmpClient, arguments| {
            qmp.execute("ringloom-log-set", &arguments).map(drop)
        };
        let found = qmp.execute("query-ringloom-log", &json!({}))?;
        ensure!(found["level"] == "warn", "{found}");
        let level = |found: &Value, part: &str| {
            let parts = found["parts"].as_array().cloned().unwrap_or_default();
            parts.into_iter().find(|it| it["part"] == part)
        };
        let own = json!({"part": "exports", "level": "info", "own": true});
        ensure!(level(&found, "exports") == Some(own), "{found}");
        // Less of one part, more of another.
        set(&mut qmp, json!({"part": "exports", "level": "error"}))?;
        visit()?;
        set(&mut qmp, json!({"level": "debug"}))?;
        visit()?;
        wait(&server, "a part that is not asked for", &|log| {
            log.contains("\"part\":\"vhost_user\"")
        })?;
        // Once it is served the one before it has left, unheard.
        let mut held = Client::connect(&socket, Shape::small())?;
        held.read(0, 4096, 0)?;
        set(&mut qmp, json!({"part": "exports"}))?;
        let found = qmp.execute("query-ringloom-log", &json!({}))?;
        let common = json!({"part": "exports", "level": "debug", "own": false});
        ensure!(level(&found, "exports") == Some(common), "{found}");
        drop(held);
        wait(&server, "the client to be told of again", &has_left(2))?;
        let (_, desc) =
            qmp.refused("ringloom-log-set", &json!({"part": "exprts", "level": "debug"}))?;
        ensure!(desc.contains("did you mean 'exports'?"), "{desc}");
        let (_, desc) = qmp.refused("ringloom-log-set", &json!({}))?;
        ensure!(desc.contains("'level' is missing"), "{desc}");
        let status = server.terminate()?;
        ensure!(status.success(), "{status}: {}", server.log());
        let log = server.log();
        ensure!(log.matches("the client has left").count() == 2, "{log}");
        for line in log.lines() {
            let said: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let is_there = |key: &str| said[key].is_string();
            ensure!(["time", "level", "part", "message"].into_iter().all(is_there), "{line}");
            if line.contains("the client has left") {
                let found = (&said["export"], &said["level"], &said["part"]);
                ensure!(found == (&json!("e0"), &json!("info"), &json!("exports")), "{line}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_level_or_part_that_is_none_is_refused_by_name() {
    let bench = Bench::new().expect("a directory");
    for (option, said) in [
        ("--log-level=loud", "'loud' is not a level (error, warn, info, debug, trace)"),
        (
            "--log-level=qcow=debug",
            "no part of the program is called 'qcow'; did you mean 'qcow2'?",
        ),
        ("--log-format=xml", "expects 'text' or 'json'"),
    ] {
        let program = ringloom().in_directory(bench.path(""));
        let line = [option.to_owned(), "--blockdev=null-co,node-name=n".to_owned()];
        let exit = program.refusal(&line, REFUSAL_LIMIT).expect("it ends");
        assert!(exit.status.code() == Some(1) && exit.stderr.contains(said), "{exit:?}");
    }
}

/// What systemd does for a service: stderr leads to the journal, and a variable says so.
#[test]
fn a_journal_behind_stderr_gets_lines_with_their_fields() {
    if !is_root() {
        skipped("another /run needs root");
        return;
    }
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        std::fs::create_dir_all(bench.path("run/systemd/journal")).context("make a directory")?;
        let place = bench.path("run/systemd/journal/socket");
        let listener = UnixDatagram::bind(place).context("listen for the log")?;
        let script = "mount --bind \"$PLACE/run\" /run && exec 2>\"$PLACE/stderr\" && \
                      JOURNAL_STREAM=$(stat -c %d:%i \"$PLACE/stderr\") exec \"$0\" serve \"$@\"";
        let words = ["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_ringloom")];
        let program = Program::named("ringloom", "unshare", &words);
        let program = program.with_variable("PLACE", &bench.text(""));
        let socket = bench.path("e0.sock");
        let export = format!(
            "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={}",
            socket.display()
        );
        let line = ["--blockdev", "null-co,node-name=n,size=1048576", "--export", &export];
        let mut server = program.start(&line.map(str::to_owned), std::slice::from_ref(&socket))?;
        Client::connect(&socket, Shape::small())?.read(0, 4096, 0)?;
        ensure!(server.terminate()?.success(), "it did not end in good order");
        let heard = received(&listener)?;
        let text = |it: &Vec<u8>| String::from_utf8_lossy(it).into_owned();
        let left = heard.iter().map(text).find(|it| it.contains("the client has left"));
        let left = left.with_context(|| format!("not said in {heard:?}"))?;
        for field in ["PRIORITY=6\n", "\nRINGLOOM_EXPORT=e0\n", "\nRINGLOOM_PART=exports\n"] {
            ensure!(left.contains(field), "{field:?} is not in {left:?}");
        }
        let stderr = std::fs::read_to_string(bench.path("stderr")).context("read stderr")?;
        ensure!(stderr.is_empty(), "said twice: {stderr}");
        Ok(())
    });
}
