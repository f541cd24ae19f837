//! Commands in pods, by websocket: whatever the words are, it is an agent in this process.

use std::io::{ErrorKind, PipeWriter, Read, Write, pipe};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use agent::Service;
use serde_json::json;
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

use super::State;

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const STATUS: u8 = 3;
const CLOSED: u8 = 255;
/// Where pods and guests have a claim that is a block device.
const DISKS: [&str; 2] = ["/dev/ringloom-disk", "/dev/vda"];
/// Where pods have one that is a file system, as a word of JSON, and the file in it that guests have.
const DIRECTORY: &str = "\"/data\"";
const IMAGE: &str = "disk.img";
/// Of a hundred streams, each with a thread that looks.
const LOOK: Duration = Duration::from_millis(4);

/// Joins a websocket to an agent until one of them ends, or the pod does.
pub(super) fn join(stream: TcpStream, pod: &str, service: Service, state: &Mutex<State>) {
    stream.set_read_timeout(Some(LOOK)).expect("a socket has a limit");
    let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    let (asks, tells) = start(service);
    let mut asks = Some(asks);
    while state.lock().expect("no panic").runs(pod) {
        match socket.read() {
            Ok(Message::Binary(bytes)) => take(&asked(&bytes, pod, state), &mut asks),
            Ok(Message::Close(_)) => return,
            Ok(_) => {}
            Err(Error::Io(error))
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        loop {
            match tells.try_recv() {
                Ok(bytes) => say(&mut socket, OUTPUT, &told(bytes, pod, state)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    let status = json!({ "metadata": {}, "status": "Success" }).to_string();
                    say(&mut socket, STATUS, status.as_bytes());
                    return;
                }
            }
        }
    }
}

/// What a service is without a token.
pub(super) fn service() -> Service {
    Service { fio: PathBuf::from("fio"), through: Vec::new(), token: None }
}

fn start(service: Service) -> (PipeWriter, Receiver<Vec<u8>>) {
    let (asked, asks) = pipe().expect("a pipe");
    let (mut told, telling) = pipe().expect("a pipe");
    // How it ends, the client sees.
    thread::spawn(move || drop(agent::serve(&service, asked, telling)));
    let (sender, tells) = channel();
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = told.read(&mut bytes) {
            if sender.send(bytes[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    (asks, tells)
}

/// An order that comes as a whole, as all of them do, with the disk of tests in it, and with the time of its start by this machine's clock.
fn asked(bytes: &[u8], pod: &str, state: &Mutex<State>) -> Vec<u8> {
    let state = state.lock().expect("no panic");
    let Ok(mut text) = std::str::from_utf8(bytes).map(str::to_owned) else { return bytes.to_vec() };
    let image = state.directory.as_ref().map(|it| it.join(IMAGE));
    if let Some(disk) = state.disk.as_ref().or(image.as_ref()) {
        let disk = disk.to_str().expect("a plain name");
        text = DISKS.iter().fold(text, |text, it| text.replace(it, disk));
    }
    if let Some(directory) = &state.directory {
        text = text.replace(DIRECTORY, &format!("{directory:?}"));
    }
    shifted(&text, &["start_ns"], -state.ahead_ns(pod)).into_bytes()
}

/// What an agent says, as one whose clock is ahead would.
fn told(bytes: Vec<u8>, pod: &str, state: &Mutex<State>) -> Vec<u8> {
    let ahead_ns = state.lock().expect("no panic").ahead_ns(pod);
    match std::str::from_utf8(&bytes) {
        Ok(text) if ahead_ns != 0 => {
            shifted(text, &["wall_ns", "started_ns", "ended_ns"], ahead_ns).into_bytes()
        }
        _ => bytes,
    }
}

/// A text with other numbers behind these names.
fn shifted(text: &str, names: &[&str], by_ns: i64) -> String {
    let mut text = text.to_owned();
    for name in names.iter().filter(|_| by_ns != 0) {
        let mark = format!("\"{name}\":");
        let Some(begin) = text.find(&mark).map(|it| it + mark.len()) else { continue };
        let length = text[begin..].find(|it: char| !it.is_ascii_digit()).unwrap_or(0);
        if let Ok(number) = text[begin..begin + length].parse::<u64>() {
            let number = number.saturating_add_signed(by_ns).to_string();
            text.replace_range(begin..begin + length, &number);
        }
    }
    text
}

fn take(bytes: &[u8], asks: &mut Option<PipeWriter>) {
    match bytes.split_first() {
        Some((&INPUT, bytes)) => {
            if let Some(asks) = asks {
                // An agent that is gone ends the stream by itself.
                drop(asks.write_all(bytes));
            }
        }
        Some((&CLOSED, [INPUT])) => *asks = None,
        other => panic!("a client sends input only: {other:?}"),
    }
}

fn say(socket: &mut WebSocket<TcpStream>, channel: u8, bytes: &[u8]) {
    // A client that is gone is noticed by the next read.
    drop(socket.send(Message::binary([&[channel], bytes].concat())));
}
