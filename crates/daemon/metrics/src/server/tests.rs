//! The server on a UNIX socket of a test: what is asked and answered, and who is let go.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use block::{Clock, SystemClock};
use iothread::{SourceName, SourceRegistry};

use super::*;
use crate::inventory::{Inventory, InventoryDesk, StorageFinding};
use crate::reading::HealthSource;

/// How long a test waits for the server.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Healthy;

impl HealthSource for Healthy {
    fn stalled(&self) -> Vec<(SourceName, Duration)> {
        Vec::new()
    }

    fn storage(&self) -> Vec<StorageFinding> {
        Vec::new()
    }
}

/// A clock that a test moves.
#[derive(Debug)]
struct MovedClock(Mutex<Instant>);

impl Clock for MovedClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }
}

struct Bench {
    directory: tempfile::TempDir,
    clock: Arc<MovedClock>,
    sources: Arc<SourceRegistry>,
    server: MetricsServer,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("unix:{}", directory.path().join("m").display());
        let mut server = MetricsServer::listen(&MetricsOptions::parse(&options).unwrap()).unwrap();
        let clock = Arc::new(MovedClock(Mutex::new(SystemClock.now())));
        let sources = Arc::<SourceRegistry>::default();
        let reader = MetricsReader {
            sources: Arc::clone(&sources),
            desk: Arc::new(InventoryDesk::new(Inventory::default(), clock.now()).unwrap()),
            health: Arc::new(Healthy),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            version: "1.2.3",
            started: Duration::from_secs(7),
        };
        server.start(reader).unwrap();
        Self { directory, clock, sources, server }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("m")
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// All that the server sends until it hangs up.
fn rest(mut stream: &UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[track_caller]
fn check(path: &Path, request: &str, begins: &str, contains: &str) {
    let mut stream = connect(path);
    stream.write_all(request.as_bytes()).unwrap();
    let answer = rest(&stream);
    assert!(answer.starts_with(begins) && answer.contains(contains), "{request:?}: {answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    if !request.starts_with("HEAD") {
        assert_eq!(length.parse(), Ok(body.len()), "{answer}");
    }
}

#[test]
fn metrics_are_answered_and_everything_else_is_refused() {
    let bench = Bench::new();
    let path = bench.path();
    let ok = "HTTP/1.1 200 OK\r\n";
    check(
        &path,
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        ok,
        "ringloom_build_info{version=\"1.2.3\"} 1\n",
    );
    let open = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n";
    check(&path, open, ok, "process_start_time_seconds 7.0\n");
    check(&path, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ok, "Connection: close");
    check(&path, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404 ", "nothing here but /metrics");
    // What follows the head of such a request is read, so that the answer is not lost.
    let body = "x".repeat(32 << 10);
    check(
        &path,
        &format!(
            "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        "HTTP/1.1 405 ",
        "Allow: GET, HEAD\r\n",
    );
    check(&path, "nonsense\r\n\r\n", "HTTP/1.1 400 ", "no request of HTTP");
    check(&path, &format!("GET /{} ", "x".repeat(9000)), "HTTP/1.1 431 ", "8192 bytes");
    let mut slow = connect(&path);
    for part in ["GET /met", "rics HTTP/1.1\r\nHo", "st: x\r\n", "\r\n"] {
        slow.write_all(part.as_bytes()).unwrap();
    }
    assert!(rest(&slow).starts_with(ok));
    drop(bench.server);
    assert!(!path.exists(), "its socket stays");
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let bench = Bench::new();
    let silent: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| connect(&bench.path())).collect();
    let ok = "HTTP/1.1 200 OK\r\n";
    check(&bench.path(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ok, "ringloom_build_info");
    // Those that came first were let go.
    assert_eq!(rest(&silent[0]), "");
}

/// Their answers are larger than what the kernel keeps for a client that does not read.
#[test]
fn clients_that_do_not_read_their_answers_keep_nobody_out_for_long() {
    let bench = Bench::new();
    (0..100).for_each(|number| bench.sources.keep_sums(&format!("vm{number}")));
    let deaf = || {
        let mut deaf = connect(&bench.path());
        deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // Its answer has begun.
        deaf.read_exact(&mut [0; 15]).unwrap();
        deaf
    };
    let deaf: Vec<_> = (0..CONNECTIONS_MAX).map(|_| deaf()).collect();
    let path = bench.path();
    let start = SystemClock.now();
    std::thread::scope(|scope| {
        let scrape = scope.spawn(|| {
            let ok = "HTTP/1.1 200 OK\r\n";
            check(&path, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ok, "ringloom_build_info");
        });
        // Whether it comes before this or after it.
        *bench.clock.0.lock().unwrap() += Duration::from_secs(1);
        scrape.join().unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // The first one was let go, and no other.
    let cut = rest(&deaf[0]);
    assert!(!cut.ends_with("# EOF\n"), "it has all {} bytes", cut.len());
    assert!(rest(&deaf[1]).ends_with("\n"));
}

#[test]
fn a_client_that_takes_too_long_is_let_go() {
    let bench = Bench::new();
    let mut slow = connect(&bench.path());
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let ok = "HTTP/1.1 200 OK\r\n";
    // One that comes later is answered when this one was accepted.
    check(&bench.path(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ok, "ringloom_build_info");
    *bench.clock.0.lock().unwrap() += Duration::from_secs(6);
    // One that comes has the server look at its clock.
    check(&bench.path(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", ok, "ringloom_build_info");
    assert_eq!(rest(&slow), "");
}
