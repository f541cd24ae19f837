//! A pool in a daemon: what it is asked while something is drained, and its end.

use std::time::Duration;

use block::{Clock, LogRateLimit, SystemClock};
use exports::{DescriptorCheck, ExportOptions, InterruptibleWait, WaitPolicy, WaitResult};
use graph::{Blockdev, NamedFilesPolicy, ObjectOptions};
use iothread::DrainedSection;
use kernel_io::FileTable;
use std::sync::Arc;
use testkit::client::{Client, Shape};
use testkit::deadline::Deadline;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

struct Never;

impl InterruptibleWait for Never {
    fn pause(&mut self, _: Duration) -> WaitResult {
        WaitResult::Stop
    }

    fn done(&mut self) {}
}

/// Export `e` on a pool whose first queue belongs on its second iothread.
fn serving(directory: &std::path::Path) -> DaemonState {
    let files: Arc<FileTable> = Arc::default();
    let (check, clock): (_, Arc<dyn Clock>) = (DescriptorCheck::on_thread(), Arc::new(SystemClock));
    let (policy, watch) = (NamedFilesPolicy::Refused, Arc::default());
    let mut built = DaemonState::nothing(&files, &clock, None, &check, &policy, &watch);
    built.add_object(&ObjectOptions::parse("iothread-pool,id=p,max=2").unwrap()).unwrap();
    built.add_node(&Blockdev::parse("null-co,node-name=n,size=1048576").unwrap()).unwrap();
    let socket = directory.join("s");
    let export = format!(
        "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},iothread=p,pin=0:1",
        socket.display()
    );
    let prepared = built.prepare_export(&ExportOptions::parse(&export).unwrap(), 1 << 40).unwrap();
    let rate = &mut LogRateLimit::default();
    let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut Never, rate };
    built.claim(&prepared, policy).unwrap();
    let listening = DaemonState::listen(prepared).unwrap();
    built.start(listening, None).unwrap();
    built
}

#[test]
fn nothing_is_placed_while_a_node_is_drained() {
    let directory = tempfile::tempdir().unwrap();
    let built = serving(directory.path());
    let node = Arc::clone(built.graph.node("n").unwrap());
    let section = DrainedSection::begin(&built.sources, vec![node], LIMIT, &SystemClock).unwrap();
    let mut client = Client::connect(&directory.path().join("s"), Shape::small()).unwrap();
    // When its feature bits are answered its queue may not be there yet.
    let deadline = Deadline::after(LIMIT);
    let source = loop {
        match built.sources().pop() {
            Some(source) => break source,
            None => assert!(!deadline.has_passed(), "no queue"),
        }
    };
    let looks = Deadline::after(Duration::from_millis(300));
    while !looks.has_passed() {
        built.pools["p"].pool().alarm().call();
        assert_eq!(source.iothread_name(), "p-0", "moved while drained");
    }
    section.end().unwrap();
    client.read(0, 4096, 0).unwrap();
    while source.iothread_name() != "p-1" {
        built.pools["p"].pool().alarm().call();
        assert!(!deadline.has_passed(), "never moved");
    }
    client.read(0, 4096, 0).unwrap();
}

#[test]
fn a_pool_that_an_export_uses_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mut built = serving(directory.path());
    let refused = built.remove_object("p").unwrap_err().to_string();
    assert_eq!(refused, "object 'p' is in use, can not be deleted");
    built.remove_export("e").unwrap();
    built.remove_object("p").unwrap();
    assert!(built.pools.is_empty() && built.unused_pools.is_empty());
}
