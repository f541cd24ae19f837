//! Sockets that whoever starts the daemon listens on already (`addr.type=fd`, `fd=`), as systemd's socket activation does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::client::{Client, RingLayout, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, STOP_LIMIT, Server};
use testkit::qmp::QmpClient;
use testkit::rawring::Survivor;
use testkit::report::skipped;
use testkit::rng::Rng;

use crate::support::stop;

/// How long a takeover, or a line that is refused, may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Opens what the words before the program say at descriptors from 3 on, as a service manager does, and becomes the program:
/// `listen=PATH`, `stream`, `file=PATH`, and `of=PID:N`, the descriptor of another process.
const MANAGER: &str = "
import ctypes, os, socket, sys
words = sys.argv[1:]
end = words.index('--')
opened = []
for number, word in enumerate(words[:end], 3):
    kind, _, value = word.partition('=')
    if kind == 'listen':
        made = socket.socket(socket.AF_UNIX)
        made.bind(value)
        made.listen(8)
        made = made.detach()
    elif kind == 'stream':
        pair = socket.socketpair()
        opened.append(pair[1])
        made = pair[0].detach()
    elif kind == 'of':
        process, descriptor = map(int, value.split(':'))
        made = ctypes.CDLL(None).syscall(438, os.pidfd_open(process), descriptor, 0)
    else:
        made = os.open(value, os.O_RDWR)
    opened.append((number, made))
opened = [it for it in opened if isinstance(it, tuple)]
spare = [(number, os.dup2(made, 100 + number)) for number, made in opened]
for number, made in spare:
    os.dup2(made, number)
    os.close(made)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(opened)))
os.execv(words[end + 1], words[end + 1:])
";

/// The daemon, started by a service manager with these descriptors.
fn managed(descriptors: &[String]) -> Program {
    let binary = env!("CARGO_BIN_EXE_ringloom");
    let mut words = vec!["-c", MANAGER];
    words.extend(descriptors.iter().map(String::as_str));
    words.extend(["--", binary, "serve"]);
    Program::named("ringloom", "python3", &words)
}

fn listen(bench: &Bench, name: &str) -> String {
    format!("listen={}", bench.text(name))
}

/// A disk, and an export of it at that descriptor.
fn line(bench: &Bench, descriptor: &str) -> Vec<String> {
    let words = [
        "--blockdev",
        &format!("file,node-name=disk,filename={}", bench.text("disk")),
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,num-queues=2,addr.type=fd,addr.str={descriptor}"
        ),
    ];
    words.map(str::to_owned).to_vec()
}

fn bench() -> Result<Bench> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("disk"), Survivor::disk_bytes(2))?;
    Ok(bench)
}

/// Stops a daemon whose sockets stay.
fn end(server: Server, sockets: &[PathBuf]) -> Result<String> {
    let log = stop(server, &[])?;
    for socket in sockets {
        ensure!(socket.exists(), "{} was removed: {log}", socket.display());
    }
    Ok(log)
}

#[track_caller]
fn with_python(behaviour: impl FnOnce() -> Result<()>) {
    if let Some(reason) = Program::named("python3", "python3", &[]).missing() {
        skipped(&reason);
        return;
    }
    behaviour().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn exports_and_monitors_are_served_at_sockets_that_listen_already() {
    with_python(|| {
        let bench = bench()?;
        let (socket, monitor) = (bench.path("e.sock"), bench.path("qmp.sock"));
        let sockets = [socket.clone(), monitor.clone()];
        let program = managed(&[listen(&bench, "e.sock"), listen(&bench, "qmp.sock")]);
        let more = ["--chardev", "socket,id=c,fd=4,server=on,wait=off", "--monitor", "chardev=c"];
        let state = ["--state", &bench.text("state"), "--sandbox", "on"];
        let more = [&more[..], &state[..]].concat().into_iter().map(str::to_owned);
        let line = [line(&bench, "3"), more.collect()].concat();
        for stamp in [0x21, 0x22] {
            let server = program.start(&line, &sockets)?;
            let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
            client.write(4096, &[stamp; 4096], 0)?;
            ensure!(client.read(4096, 4096, 0)? == [stamp; 4096], "other bytes");
            let mut qmp = QmpClient::connect(&monitor)?;
            let chardevs = qmp.execute("query-chardev", &json!({}))?;
            let name = chardevs[0]["filename"].as_str().unwrap_or_default().to_owned();
            ensure!(name == format!("unix:{},server=on", monitor.display()), "{name}");
            let at_run_time = json!({
                "type": "vhost-user-blk", "id": "more", "node-name": "disk",
                "addr": {"type": "fd", "str": "3"},
            });
            let (_, desc) = qmp.refused("block-export-add", &at_run_time)?;
            ensure!(desc.contains("addr.type=fd is for the command line"), "{desc}");
            // What commands take away is not the manager's socket.
            drop(client);
            let del = json!({"id": "e", "mode": "hard"});
            if stamp == 0x22 {
                qmp.execute("block-export-del", &del)?;
                ensure!(socket.exists(), "the socket is gone");
            }
            drop(qmp);
            end(server, &sockets)?;
            // The manager's own end: it makes them anew.
            sockets.iter().try_for_each(std::fs::remove_file)?;
        }
        Ok(())
    });
}

/// An export at the path of a socket that is passed, with the line that it would have without a service manager.
#[test]
fn a_path_may_be_that_of_a_socket_that_is_passed() {
    with_python(|| {
        let bench = bench()?;
        let sockets = [bench.path("other.sock"), bench.path("e.sock")];
        let program = managed(&[listen(&bench, "other.sock"), listen(&bench, "e.sock")]);
        let mut line = line(&bench, "4");
        let at_path = format!("addr.type=unix,addr.path={}", bench.text("e.sock"));
        line[3] = line[3].replace("addr.type=fd,addr.str=4", &at_path);
        line.extend(["--state".to_owned(), bench.text("state")]);
        let mut server = program.start(&line, &sockets)?;
        let mut client = Client::connect(&sockets[1], Shape { queues: 2, ..Shape::small() })?;
        client.write(4096, &[7; 4096], 0)?;
        drop(client);
        // Whoever takes over is passed nothing, and knows all the same whose the socket is.
        line.push("--takeover".to_owned());
        let next = Program::ringloom(env!("CARGO_BIN_EXE_ringloom")).spawn(&line)?;
        next.wait_for_log("has handed over", LIMIT)?;
        server.wait(LIMIT)?;
        poll_until("the next client", STOP_LIMIT, || {
            let mut client = Client::connect(&sockets[1], Shape { queues: 2, ..Shape::small() })?;
            Ok((client.read(4096, 4096, 0)? == [7; 4096]).then_some(()))
        })?;
        end(next, &sockets).map(drop)
    });
}

#[test]
fn what_is_no_socket_to_listen_on_is_refused() {
    with_python(|| {
        let bench = bench()?;
        let descriptors =
            [listen(&bench, "e.sock"), "stream".to_owned(), format!("file={}", bench.text("disk"))];
        let monitor = |chardev: &str| {
            let words = ["--chardev", chardev, "--monitor", "chardev=c"];
            [line(&bench, "3"), words.map(str::to_owned).to_vec()].concat()
        };
        let twice = {
            let mut all = line(&bench, "3");
            all.extend(["--export".to_owned(), all[3].replace("id=e", "id=f")]);
            all
        };
        for (line, expected) in [
            (line(&bench, "4"), "File descriptor '4' is a socket that does not listen"),
            (line(&bench, "5"), "File descriptor '5' is not a socket"),
            (line(&bench, "77"), "File descriptor '77' is not a socket"),
            (line(&bench, "name"), "Unable to parse FD number name"),
            (twice, "an export with socket"),
            (monitor("socket,id=c,fd=4,server=on"), "'4' is a socket that does not listen"),
            (monitor("socket,id=c,fd=3"), "it needs server=on"),
            (monitor("socket,id=c,fd=3,server=on,mode=0660"), "has its mode and group already"),
            (monitor("socket,id=c,fd=3,path=x,server=on"), "one of 'path' and 'fd' is enough"),
            (monitor("socket,id=c,server=on"), "parameter 'path' is missing"),
        ] {
            let exit = managed(&descriptors).refusal(&line, LIMIT)?;
            ensure!(!exit.status.success() && exit.stderr.contains(expected), "{line:?}: {exit:?}");
            let _made_anew = std::fs::remove_file(bench.path("e.sock"));
        }
        let check = managed(&descriptors).refusal(&line(&bench, "3"), Duration::from_secs(1));
        ensure!(check.is_err(), "it serves");
        Ok(())
    });
}

/// A process that is started with the same socket takes over; without it, it is refused, and the first one goes on.
#[test]
fn a_process_with_the_same_socket_takes_over() {
    with_python(|| {
        let bench = bench()?;
        let socket = bench.path("e.sock");
        let first = managed(&[listen(&bench, "e.sock")]);
        let with_takeover = [line(&bench, "3"), vec!["--takeover".to_owned()]].concat();
        // Nobody but the manager listens there: nothing is to be taken over.
        let mut old = first.start(&with_takeover, std::slice::from_ref(&socket))?;
        old.wait_for_log("nothing to take over", LIMIT)?;
        let (mut client, mut rng) =
            (Survivor::connect(&socket, RingLayout::Split, 2)?, Rng::new(5));
        client.submit(&mut rng)?;
        let exit = managed(&["stream".to_owned()]).refusal(&with_takeover, LIMIT)?;
        ensure!(exit.stderr.contains("is a socket that does not listen"), "{exit:?}");
        ensure!(old.is_alive()?, "the old one has ended: {}", old.log());
        let second = managed(&[format!("of={}:3", old.pid())]);
        let server = second.spawn(&with_takeover)?;
        server.wait_for_log("has handed over", LIMIT)?;
        old.wait(LIMIT)?;
        client.submit(&mut rng)?;
        client.drain()?;
        let expected = client.expected();
        drop(client);
        poll_until("the next client", STOP_LIMIT, || {
            let mut next = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
            Ok((next.read(0, 4096, 0)? == expected[..4096]).then_some(()))
        })?;
        end(server, std::slice::from_ref(&socket)).map(drop)
    });
}
