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
const LOOK: Duration = Duration::from_millis(1);

/// Joins a websocket to an agent until one of them ends, or the pod does.
pub(super) fn join(stream: TcpStream, pod: &str, service: Service, state: &Mutex<State>) {
    stream.set_read_timeout(Some(LOOK)).expect("a socket has a limit");
    let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    let (asks, tells) = start(service);
    let mut asks = Some(asks);
    while state.lock().expect("no panic").runs(pod) {
        match socket.read() {
            Ok(Message::Binary(bytes)) => take(&with_disk(&bytes, state), &mut asks),
            Ok(Message::Close(_)) => return,
            Ok(_) => {}
            Err(Error::Io(error))
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        loop {
            match tells.try_recv() {
                Ok(bytes) => say(&mut socket, OUTPUT, &bytes),
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

/// An order that comes as a whole, as all of them do, with the disk of tests in it.
fn with_disk(bytes: &[u8], state: &Mutex<State>) -> Vec<u8> {
    let state = state.lock().expect("no panic");
    match (&state.disk, std::str::from_utf8(bytes)) {
        (Some(disk), Ok(text)) => {
            let disk = disk.to_str().expect("a plain name");
            DISKS.iter().fold(text.to_owned(), |text, it| text.replace(it, disk)).into_bytes()
        }
        _ => bytes.to_vec(),
    }
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
