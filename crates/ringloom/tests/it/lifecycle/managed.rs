//! What a service manager is told (sd_notify(3)), read from the socket that it would listen on.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::image;
use testkit::process::{Bench, STOP_LIMIT, Signal};
use testkit::rawring::Survivor;
use testkit::rng::Rng;

use crate::support::{ringloom, with};

const QUEUES: u16 = 1;

/// A disk that answers no write before it is given up, with `t0` as its iothread, and a second one that does.
fn line(bench: &Bench, more: &[&str]) -> Vec<String> {
    let export = |id: &str, node: &str| {
        let path = bench.text(&format!("{id}.sock"));
        format!(
            "vhost-user-blk,id={id},node-name={node},writable=on,addr.type=unix,addr.path={path},iothread=t0"
        )
    };
    let nodes = [
        format!("file,node-name=f,filename={}", bench.text("f.img")),
        "delay,node-name=slow,file=f,latency-ns=600000000000".to_owned(),
        format!("file,node-name=g,filename={}", bench.text("g.img")),
    ];
    let mut line = vec!["--object".to_owned(), "iothread,id=t0".to_owned()];
    line.extend(nodes.into_iter().flat_map(|node| ["--blockdev".to_owned(), node]));
    for export in [export("slow", "slow"), export("quick", "g")] {
        line.extend(["--export".to_owned(), export]);
    }
    line.extend(more.iter().map(|word| (*word).to_owned()));
    line
}

/// A manager's socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn listen(bench: &Bench) -> Result<Self> {
        let path = bench.path("manager");
        let socket = UnixDatagram::bind(&path).context("a manager's socket")?;
        socket.set_read_timeout(Some(STOP_LIMIT))?;
        Ok(Self { socket, path })
    }

    /// The next that is said.
    fn hear(&self) -> Result<String> {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).context("nothing is said")?;
        Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// The next that is no sign of life.
    fn hear_news(&self) -> Result<String> {
        loop {
            let said = self.hear()?;
            if said != "WATCHDOG=1" {
                return Ok(said);
            }
        }
    }
}

#[test]
fn a_manager_hears_that_the_daemon_is_ready_alive_replaced_and_over() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        for name in ["f.img", "g.img"] {
            image::create_sparse(&bench.path(name), Survivor::disk_bytes(QUEUES))?;
        }
        let manager = Manager::listen(&bench)?;
        let socket = manager.path.display().to_string();
        let program = ringloom().with_variable("NOTIFY_SOCKET", &socket);
        let watched = ringloom()
            .with_variable("NOTIFY_SOCKET", &socket)
            .with_variable("WATCHDOG_USEC", "900000");
        let mut old = watched.spawn(&line(&bench, &[]))?;
        let ready = format!("READY=1\nMAINPID={}\nSTATUS=serving", old.pid());
        ensure!(manager.hear()? == ready, "{}", old.log());
        // A disk that does not answer is no reason for silence.
        let mut client = Survivor::connect(&bench.path("slow.sock"), RingLayout::Split, QUEUES)?;
        client.submit(&mut Rng::new(3))?;
        for _ in 0..4 {
            ensure!(manager.hear()? == "WATCHDOG=1", "{}", old.log());
        }
        drop(client);
        let mut new = program.spawn(&line(&bench, &["--takeover"]))?;
        ensure!(manager.hear_news()? == format!("MAINPID={}", new.pid()), "{}", old.log());
        ensure!(old.wait(STOP_LIMIT)?.success(), "{}", old.log());
        let ready = format!("READY=1\nMAINPID={}\nSTATUS=serving", new.pid());
        ensure!(manager.hear_news()? == ready, "{}", new.log());
        ensure!(manager.hear()? == "WATCHDOG=1", "whoever is not told when says it all the same");
        new.signal(Signal::TERM)?;
        ensure!(manager.hear_news()? == "STOPPING=1\nSTATUS=finishing what is open");
        ensure!(new.wait(Duration::from_secs(30))?.success(), "{}", new.log());
        Ok(())
    });
}

#[test]
fn a_manager_that_is_not_there_is_said_and_missed_by_nobody() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        for name in ["f.img", "g.img"] {
            image::create_sparse(&bench.path(name), Survivor::disk_bytes(QUEUES))?;
        }
        for (socket, expected) in [
            (bench.text("gone"), "the service manager cannot be told anything: No such file"),
            ("x".to_owned(), "NOTIFY_SOCKET=x is neither a path nor an abstract name"),
        ] {
            let program = ringloom().with_variable("NOTIFY_SOCKET", &socket);
            let mut server = program.start(&line(&bench, &[]), &[bench.path("quick.sock")])?;
            server.wait_for_log(expected, STOP_LIMIT)?;
            ensure!(server.terminate()?.success(), "{}", server.log());
        }
        Ok(())
    });
}
