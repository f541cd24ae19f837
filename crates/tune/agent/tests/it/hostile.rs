//! Peers that do not keep to the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use agent::{AgentError, Client, LINE_BYTES_MAX, Token};

use crate::support::{greet, listening, nothing_ends_it, piped, service};

/// What an agent answers to these bytes, and how it ends.
fn answer(token: Option<&Token>, bytes: &[u8]) -> (String, Result<(), AgentError>) {
    let (agent, mut tells, mut asks) = piped(service(token));
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        // An agent that has heard enough reads no further.
        drop(asks.write_all(&bytes));
    });
    let mut told = String::new();
    tells.read_to_string(&mut told).expect("text");
    drop(tells);
    writer.join().expect("no panic");
    (told, agent.join().expect("no panic"))
}

const HELLO: &str = "{\"ask\":\"hello\",\"version\":1,\"token\":null}\n";

#[test]
fn an_agent_says_what_it_does_not_understand_and_ends() {
    for (bytes, part) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "expected value"),
        ("{\"ask\":\"meters\"}\n".to_owned(), "says hello first"),
        ("{\"ask\":\"hello\",\"version\":99,\"token\":null}\n".to_owned(), "version 99"),
        ("{\"ask\":\"hello\",\"version\":1,\"token\":null,\"x\":1}\n".to_owned(), "unknown field"),
        (HELLO.trim_end().to_owned(), "without an end"),
        ("x".repeat(LINE_BYTES_MAX + 5), "too long"),
        (format!("{HELLO}{{\"ask\":\"format\"}}\n"), "unknown variant"),
        (format!("{HELLO}{{\"ask\":\"run\",\"job\":7}}\n"), "invalid type"),
        (format!("{HELLO}\0\n"), "expected value"),
    ] {
        let (told, end) = answer(None, bytes.as_bytes());
        assert!(told.contains(part) && told.contains("failed"), "{bytes:.60}: {told}");
        assert!(end.is_err(), "{bytes:.60}");
    }
    let (told, end) = answer(None, format!("{HELLO}{HELLO}").as_bytes());
    assert!(told.contains("has said hello before") && end.is_ok(), "{told}");
    let (told, end) = answer(None, b"");
    assert!(told.is_empty() && end.is_err());
}

#[test]
fn only_who_knows_the_token_is_obeyed() {
    let (token, other) = (Token::random().expect("random"), Token::random().expect("random"));
    let address = listening(&token);
    for wrong in [None, Some(&other)] {
        let error = greet(address, wrong).expect_err("refused").to_string();
        assert!(error.contains("does not know the token"), "{error}");
    }
    // Who has said nothing yet takes nobody's place.
    let _silent: Vec<_> =
        (0..4).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    greet(address, Some(&token)).expect("the right one");
}

/// What a client says of an agent that tells these bytes.
fn client_of(bytes: &[u8]) -> AgentError {
    let input = std::io::Cursor::new(bytes.to_vec());
    let greeted =
        Client::greet(Box::new(input), Box::new(std::io::sink()), None, &mut nothing_ends_it);
    greeted.expect_err("that is no agent")
}

#[test]
fn a_client_says_what_it_does_not_understand() {
    for (bytes, part) in [
        ("", "is lost"),
        ("OCI runtime exec failed: no such file\n", "not understood: expected value"),
        ("{\"tell\":\"failed\",\"why\":\"another client\"}\n", "agent: another client"),
        ("{\"tell\":\"clock\",\"wall_ns\":1}\n", "Clock is no answer"),
        ("{\"tell\":\"hello\",\"version\":2}\n", "missing field"),
    ] {
        let said = client_of(bytes.as_bytes()).to_string();
        assert!(said.contains(part), "{bytes}: {said}");
    }
}

#[test]
fn random_bytes_stop_no_agent_from_ending() {
    let mut random = load::Random::new(24);
    for _ in 0..200 {
        let mut bytes = vec![0; usize::try_from(random.below(400)).expect("small")];
        random.fill(&mut bytes);
        // Some get past the greeting first.
        let hello = if random.below(2) == 0 { HELLO.as_bytes() } else { b"" };
        let all = [hello, &bytes, b"\n"].concat();
        let (_told, end) = answer(None, &all);
        assert!(end.is_err(), "{bytes:?}");
    }
}
