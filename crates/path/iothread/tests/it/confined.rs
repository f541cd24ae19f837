//! What a thread gives up before it serves.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use iothread::{Confinement, Iothread, PollSettings, ProcessResources, SpawnError};

use crate::setup::process_resources;

#[derive(Debug)]
struct Tell(Sender<(ThreadId, Option<String>)>);

impl Confinement for Tell {
    fn confine(&self) -> io::Result<()> {
        let thread = std::thread::current();
        self.0.send((thread.id(), thread.name().map(str::to_owned))).unwrap();
        Ok(())
    }
}

#[derive(Debug)]
struct Refuse;

impl Confinement for Refuse {
    fn confine(&self) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn spawn(confine: Arc<dyn Confinement>) -> Result<Iothread, SpawnError> {
    let host = ProcessResources { confine: Some(confine), ..process_resources() };
    Iothread::spawn("t0", host, PollSettings::default())
}

#[test]
fn an_iothread_is_confined_on_its_own_thread_before_it_is_ready() {
    let (told, heard) = channel();
    let iothread = spawn(Arc::new(Tell(told))).unwrap();
    let (id, name) = heard.try_recv().expect("told before the start was over");
    assert_ne!(id, std::thread::current().id());
    assert_eq!(name.as_deref(), Some("IO t0"));
    drop(iothread);
}

#[test]
fn an_iothread_that_cannot_be_confined_does_not_start() {
    let error = spawn(Arc::new(Refuse)).unwrap_err();
    assert!(matches!(error, SpawnError::Confine { .. }), "{error}");
}
