//! Agents in this process.

use std::error::Error;
use std::io::{PipeReader, PipeWriter, pipe};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use agent::{AgentError, Client, Service, Token};

pub(crate) fn nothing_ends_it() -> Result<(), Box<dyn Error + Send + Sync>> {
    Ok(())
}

pub(crate) fn service(token: Option<&Token>) -> Service {
    Service { fio: PathBuf::from("fio"), through: Vec::new(), token: token.cloned() }
}

/// An agent in a thread, and the other ends of its pipes.
pub(crate) fn piped(
    service: Service,
) -> (JoinHandle<Result<(), AgentError>>, PipeReader, PipeWriter) {
    let (asked, asks) = pipe().expect("a pipe");
    let (tells, telling) = pipe().expect("a pipe");
    let agent = thread::spawn(move || agent::serve(&service, asked, telling));
    (agent, tells, asks)
}

/// An agent at a port, which lives as long as the test.
pub(crate) fn listening(token: &Token) -> SocketAddr {
    let (told, address) = channel();
    let service = service(Some(token));
    thread::spawn(move || {
        let bound = |address| told.send(address).expect("the test waits for it");
        agent::listen(&service, "127.0.0.1:0".parse().expect("an address"), bound)
    });
    address.recv().expect("it listens")
}

pub(crate) fn greet(address: SocketAddr, token: Option<&Token>) -> Result<Client, AgentError> {
    let stream = TcpStream::connect(address).expect("it listens");
    let input = Box::new(stream.try_clone().expect("a clone"));
    Client::greet(input, Box::new(stream), token, &mut nothing_ends_it)
}
