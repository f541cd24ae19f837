//! Connections that are lost while requests are in flight, and servers that do not come back.

use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::process::{Bench, Program};

use super::connections::verify;
use super::{MIB, line, nbdkit, node};
use crate::nbd::{outcome, socket, start, tool, uri};
use crate::support::{ringloom, stop, with};

/// A server that is killed again and again below a checked load.
fn killed_servers(program: &Program, filters: &[&str], parameters: &[&str]) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 64 * MIB)?;
    let file = bench.text("a.img");
    let kit = [filters, &["file", &file], parameters].concat();
    let mut running = nbdkit(&bench, &kit)?;
    let threads = ["--object", "iothread,id=t0", "--object", "iothread,id=t1"];
    let mut words: Vec<String> = threads.iter().map(|word| (*word).to_owned()).collect();
    let iothreads = ",iothread.0=t0,iothread.1=t1";
    words.extend(line(&bench, &node(&bench, ",reconnect-delay=60"), iothreads));
    let ours = start(program, &bench, &words)?;
    let is_over = AtomicBool::new(false);
    let kills = std::thread::scope(|scope| -> Result<u32> {
        let load = scope.spawn(|| {
            let verified = verify(&bench, 4, 8);
            is_over.store(true, Ordering::SeqCst);
            verified
        });
        let mut kills = 0;
        while !is_over.load(Ordering::SeqCst) {
            let pause = Deadline::after(Duration::from_millis(150));
            poll_until("the next kill", Duration::from_secs(5), || {
                let is_due = pause.has_passed() || is_over.load(Ordering::SeqCst);
                Ok(is_due.then_some(()))
            })?;
            running.kill()?;
            running = nbdkit(&bench, &kit)?;
            kills += 1;
        }
        load.join().expect("the load does not panic").map(|()| kills)
    });
    let kills = kills.with_context(|| ours.log())?;
    ensure!(kills > 2, "{kills} kills");
    let said = stop(ours, &[&socket(&bench)])?;
    ensure!(said.contains("connection lost") && said.contains("connected again"), "{said}");
    running.kill()
}

/// How long a write takes to fail that meets a server which has gone.
fn time_to_fail(program: &Program, delay: &str) -> Result<Duration> {
    let bench = Bench::new()?;
    let mut kit = nbdkit(&bench, &["memory", "64M"])?;
    let ours = start(program, &bench, &line(&bench, &node(&bench, delay), ""))?;
    kit.kill()?;
    let before = Deadline::after(Duration::from_secs(60));
    let wrote = outcome("qemu-io", &["-f", "raw", "-c", "write 0 4096", &uri(&bench, "x")])?;
    let took = before.elapsed();
    ensure!(
        String::from_utf8_lossy(&wrote.stderr).contains("Input/output error")
            || String::from_utf8_lossy(&wrote.stdout).contains("Input/output error"),
        "{wrote:?}"
    );
    // It is served again as soon as there is a server.
    let mut kit = nbdkit(&bench, &["memory", "64M"])?;
    poll_until("the next write", Duration::from_secs(30), || {
        let wrote = outcome("qemu-io", &["-f", "raw", "-c", "write 0 4096", &uri(&bench, "x")])?;
        Ok(wrote.status.success().then_some(()))
    })?;
    // Another disk is not taken for the same.
    kit.kill()?;
    let mut kit = nbdkit(&bench, &["memory", "32M"])?;
    let wrote = outcome("qemu-io", &["-f", "raw", "-c", "write 0 4096", &uri(&bench, "x")])?;
    ensure!(!wrote.status.success(), "{wrote:?}");
    ours.wait_for_log("the export is another one than before", Duration::from_secs(20))?;
    stop(ours, &[&socket(&bench)])?;
    kit.kill()?;
    Ok(took)
}

fn requests_wait_as_long_as_they_are_told(program: &Program) -> Result<()> {
    let at_once = time_to_fail(program, "")?;
    ensure!(at_once < Duration::from_millis(1500), "{at_once:?}");
    let later = time_to_fail(program, ",reconnect-delay=3")?;
    ensure!((2500..8000).contains(&later.as_millis()), "{later:?}");
    Ok(())
}

/// A network that keeps what a client has sent when the client has gone: each connection leads to the server that is named
/// when it is made.
struct Network {
    target: Mutex<PathBuf>,
    clients: Mutex<Vec<UnixStream>>,
    carried: AtomicUsize,
}

impl Network {
    fn accept_all(self: &Arc<Self>, listener: &UnixListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let target = self.target.lock().expect("no holder panics").clone();
            let Ok(server) = UnixStream::connect(target) else { continue };
            let (network, from, to) = (Arc::clone(self), client.try_clone(), server.try_clone());
            let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
            self.clients
                .lock()
                .expect("no holder panics")
                .push(client.try_clone().expect("one more"));
            std::thread::spawn(move || {
                let mut bytes = [0; 1 << 16];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    if to.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                    network.carried.fetch_add(count, Ordering::SeqCst);
                }
                // The server does not hear of the end: it stays connected as long as the test.
                let _kept = ManuallyDrop::new(to);
            });
            let (mut from, mut to) = (server, client);
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    }

    /// Cuts all clients off, and leads the next ones elsewhere.
    fn cut(&self, target: PathBuf) -> Result<()> {
        *self.target.lock().expect("no holder panics") = target;
        for client in self.clients.lock().expect("no holder panics").drain(..) {
            client.shutdown(Shutdown::Both)?;
        }
        Ok(())
    }
}

/// NBD has no fence: what is still on its way to a server when the connection is lost may be written after the same
/// write was sent again, and after later ones to the same place.
fn late(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), MIB)?;
    let file = bench.text("a.img");
    let kit = |socket: &str, arguments: &[&str]| {
        let options = ["-f", "--exit-with-parent", "-U", &bench.text(socket)];
        let words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        Program::named("nbdkit", "nbdkit", &options).start(&words, &[bench.path(socket)])
    };
    let mut slow = kit("slow.sock", &["--filter=delay", "file", &file, "delay-write=3"])?;
    let mut quick = kit("quick.sock", &["file", &file])?;
    let network = Arc::new(Network {
        target: Mutex::new(bench.path("slow.sock")),
        clients: Mutex::default(),
        carried: AtomicUsize::new(0),
    });
    let listener = UnixListener::bind(bench.path("kit.sock"))?;
    let carrier = Arc::clone(&network);
    std::thread::spawn(move || carrier.accept_all(&listener));
    let ours = start(program, &bench, &line(&bench, &node(&bench, ",reconnect-delay=30"), ""))?;
    let uri = uri(&bench, "x");
    std::thread::scope(|scope| -> Result<()> {
        let first = scope.spawn(|| tool("qemu-io", &["-f", "raw", "-c", "write -P 1 0 64k", &uri]));
        poll_until("the write to be on its way", Duration::from_secs(10), || {
            Ok((network.carried.load(Ordering::SeqCst) > 65536).then_some(()))
        })?;
        network.cut(bench.path("quick.sock"))?;
        first.join().expect("it does not panic")?;
        Ok(())
    })?;
    tool("qemu-io", &["-f", "raw", "-c", "write -P 2 0 64k", "-c", "read -P 2 0 64k", &uri])?;
    poll_until("the late write", Duration::from_secs(20), || {
        Ok((std::fs::read(bench.path("a.img"))?[0] == 1).then_some(()))
    })?;
    stop(ours, &[&socket(&bench)])?;
    slow.kill()?;
    quick.kill()
}

#[test]
fn a_late_write_of_a_lost_connection_is_what_nbd_cannot_fence_off() {
    with(&ringloom(), late);
}

#[test]
fn nothing_is_lost_when_a_server_is_killed_under_load() {
    with(&ringloom(), |program| killed_servers(program, &[], &[]));
}

#[test]
fn nothing_is_lost_on_a_shared_connection_either() {
    let one = ["--filter=multi-conn", "--filter=noextents"];
    with(&ringloom(), |program| killed_servers(program, &one, &["multi-conn-mode=disable"]));
}

#[test]
fn requests_wait_for_a_server_as_long_as_reconnect_delay_says() {
    with(&ringloom(), requests_wait_as_long_as_they_are_told);
}
