//! The stream to an agent in a pod: a command's standard input and output, as std has them.
//!
//! Threads: tokio's carries bytes between the websocket and bounded channels; readers and writers wait at these. Dropping the writer ends the
//! command's input, also while nobody reads its output any more: otherwise a command that prints much would not hear of it.

use std::io::{self, Read, Write};
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::api::{Check, Server};
use crate::error::ClusterError;
use crate::objects::pod::CONTAINER;

const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_MAX: usize = 64;
/// What is kept of what a command says on standard error before it fails.
const ERRORS_BYTES: usize = 4096;
/// What a connection that has broken has brought is read within this time.
const REST_LIMIT: Duration = Duration::from_secs(2);
/// A container is there a moment before commands can be run in it, and an API server may have to get new certificates.
const ATTEMPTS: u32 = 5;

/// What a command has printed, or how it has ended.
type Chunk = Result<Vec<u8>, String>;
/// Both ends.
pub(crate) type Ends = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Runs a command in a pod.
pub(crate) fn exec(
    server: &Server,
    pods: &Api<Pod>,
    pod: &str,
    words: &[&str],
    check: Check<'_>,
) -> Result<Ends, ClusterError> {
    let process = begin(server, pods, pod, words, check)?;
    let (to_pod, to_send) = mpsc::channel::<Vec<u8>>(CHUNKS_MAX);
    let (received, from_pod) = mpsc::channel::<Chunk>(CHUNKS_MAX);
    server.runtime.spawn(carry(process, to_send, received));
    let reader = Reader { from_pod, left: Vec::new() };
    Ok((Box::new(reader), Box::new(Writer { to_pod })))
}

fn begin(
    server: &Server,
    pods: &Api<Pod>,
    pod: &str,
    words: &[&str],
    check: Check<'_>,
) -> Result<AttachedProcess, ClusterError> {
    let parameters = AttachParams::default()
        .container(CONTAINER)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .max_stdin_buf_size(CHUNK_BYTES)
        .max_stdout_buf_size(CHUNK_BYTES)
        .max_stderr_buf_size(CHUNK_BYTES);
    let mut attempt = 1;
    loop {
        let begun = server.limited(check, pods.exec(pod, words.iter().copied(), &parameters))?;
        match begun {
            Ok(process) => return Ok(process),
            Err(error) if attempt == ATTEMPTS => {
                let what = format!("run {} in the pod {pod}", words.join(" "));
                return Err(ClusterError::Refused { what, why: error.to_string() });
            }
            Err(_) => server.pause(check)?,
        }
        attempt += 1;
    }
}

/// Carries bytes until the command has ended, and then why, if it has not ended well.
async fn carry(
    mut process: AttachedProcess,
    to_send: mpsc::Receiver<Vec<u8>>,
    received: mpsc::Sender<Chunk>,
) {
    let (input, output, errors) = (process.stdin(), process.stdout(), process.stderr());
    let status = process.take_status();
    if let Some(input) = input {
        tokio::spawn(feed(input, to_send));
    }
    let mut said = Vec::new();
    let streams = async { tokio::join!(collect(errors, &mut said), forward(output, &received)) };
    let ended = until_ended(streams, process.join()).await.err().map(|it| it.to_string());
    let status = match status {
        Some(status) => status.await.and_then(|it| it.message),
        None => None,
    };
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let why = if said.is_empty() { status.or(ended).unwrap_or_default() } else { said };
    if !why.is_empty() {
        drop(received.send(Err(why)).await);
    }
}

/// Waits for the end of a command's output and of its connection. If that breaks, the library leaves the output open for ever.
async fn until_ended<T>(
    streams: impl Future,
    connection: impl Future<Output = Result<(), T>>,
) -> Result<(), T> {
    let (mut streams, mut connection) = (pin!(streams), pin!(connection));
    tokio::select! {
        _ = &mut streams => connection.await,
        ended = &mut connection => {
            // What came before is handed on.
            drop(tokio::time::timeout(REST_LIMIT, streams).await);
            ended
        }
    }
}

async fn feed(mut input: impl AsyncWrite + Unpin, mut to_send: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = to_send.recv().await {
        if input.write_all(&bytes).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
    // The command hears the end of its input; nobody is left to tell if it cannot.
    drop(input.shutdown().await);
}

async fn forward(output: Option<impl AsyncRead + Unpin>, received: &mpsc::Sender<Chunk>) {
    let Some(mut output) = output else { return };
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = output.read(&mut bytes).await {
        // What nobody reads any more is read all the same: what is not would stop the stream in both directions.
        drop(received.send(Ok(bytes[..length].to_vec())).await);
    }
}

async fn collect(errors: Option<impl AsyncRead + Unpin>, said: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut bytes = [0; 1024];
    while let Ok(length @ 1..) = errors.read(&mut bytes).await {
        said.extend(&bytes[..length.min(ERRORS_BYTES - said.len())]);
    }
}

struct Reader {
    from_pod: mpsc::Receiver<Chunk>,
    left: Vec<u8>,
}

impl Read for Reader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.from_pod.blocking_recv() {
                Some(Ok(next)) => self.left = next,
                Some(Err(why)) => return Err(io::Error::other(why)),
                None => return Ok(0),
            }
        }
        let length = bytes.len().min(self.left.len());
        bytes[..length].copy_from_slice(&self.left[..length]);
        self.left.drain(..length);
        Ok(length)
    }
}

struct Writer {
    to_pod: mpsc::Sender<Vec<u8>>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.to_pod.blocking_send(bytes.to_vec());
        sent.map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error.to_string()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
