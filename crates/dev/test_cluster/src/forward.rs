//! Connections handed on between this machine and the private network: a TCP port outside, a Unix socket between,
//! the API server's port inside.
//!
//! Threads: two for each connection, one for each direction; they end with it. Limits: none on connections: only
//! tests of this machine come here.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result};

/// Both kinds of sockets.
trait Connection: Read + Write + Send + Sized + 'static {
    fn twin(&self) -> std::io::Result<Self>;
    fn end_of_writing(&self) -> std::io::Result<()>;
}

impl Connection for TcpStream {
    fn twin(&self) -> std::io::Result<Self> {
        self.try_clone()
    }

    fn end_of_writing(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Connection for UnixStream {
    fn twin(&self) -> std::io::Result<Self> {
        self.try_clone()
    }

    fn end_of_writing(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Hands on each connection of the listener to the Unix socket, from now on.
pub(crate) fn tcp_to_unix(listener: TcpListener, socket: PathBuf) {
    thread::spawn(move || {
        for arrived in listener.incoming().flatten() {
            // Nobody listens yet or any more: the client sees its connection closed.
            if let Ok(onward) = UnixStream::connect(&socket) {
                let _refused = join(arrived, onward);
            }
        }
    });
}

/// Hands on each connection to the Unix socket, which is made here, to this port of 127.0.0.1, from now on.
pub(crate) fn unix_to_tcp(socket: &Path, port: u16) -> Result<()> {
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
    thread::spawn(move || {
        for arrived in listener.incoming().flatten() {
            if let Ok(onward) = TcpStream::connect(("127.0.0.1", port)) {
                let _refused = join(arrived, onward);
            }
        }
    });
    Ok(())
}

fn join(one: impl Connection, other: impl Connection) -> std::io::Result<()> {
    let (from_one, from_other) = (one.twin()?, other.twin()?);
    thread::spawn(move || copy(from_one, other));
    thread::spawn(move || copy(from_other, one));
    Ok(())
}

/// Until either ends; then the receiver learns that nothing more comes.
fn copy(mut from: impl Connection, mut to: impl Connection) {
    let _broken = std::io::copy(&mut from, &mut to);
    let _already_closed = to.end_of_writing();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_their_end_pass_both_ways() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("its address").port();
        unix_to_tcp(&socket, port).expect("it listens");
        let outside = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = outside.local_addr().expect("its address");
        tcp_to_unix(outside, socket);
        let mut client = TcpStream::connect(address).expect("it accepts");
        client.write_all(b"question").expect("it takes bytes");
        client.shutdown(Shutdown::Write).expect("the end is told");
        let (mut served, _) = server.accept().expect("a connection arrives");
        let mut text = String::new();
        served.read_to_string(&mut text).expect("bytes until the end");
        assert_eq!(text, "question");
        served.write_all(b"answer").expect("it takes bytes");
        drop(served);
        let mut text = String::new();
        client.read_to_string(&mut text).expect("bytes until the end");
        assert_eq!(text, "answer");
    }
}
