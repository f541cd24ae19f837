//! Disks are backed up by jobs: what the graph knows of them, and what is left of what was done at their instant.

use std::sync::mpsc::{Receiver, channel};

use copy::{CopiedSource, CopyEnd, ErrorPolicy};
use layers::CbwErrorPolicy;

use super::mirror::Reporter;
use super::*;
use crate::state::{
    AtOnce, BackupChanges, BackupOptions, BackupSync, BlockJobError, JobNews, JobObserver,
};

/// What is done at the instant, and whether it was taken back.
#[derive(Default)]
struct Counted {
    done: u32,
    taken_back: u32,
}

impl AtOnce for Counted {
    type Error = BlockJobError;

    fn nodes(&self) -> Vec<String> {
        Vec::new()
    }

    fn apply(&mut self) -> Result<(), BlockJobError> {
        self.done += 1;
        Ok(())
    }

    fn take_back(&mut self) {
        self.taken_back += 1;
    }
}

/// A job of that id from one node to another, and what tells of it.
fn backup(
    id: &str,
    (source, target): (&str, &str),
) -> ((BackupOptions, Arc<dyn JobObserver>), Receiver<JobNews>) {
    let (sender, news) = channel();
    let options = BackupOptions {
        id: id.to_owned(),
        source: source.to_owned(),
        target: target.to_owned(),
        sync: BackupSync::Full,
        bitmap: None,
        compress: false,
        copied: CopiedSource::Kept,
        speed: 0,
        on_source_error: ErrorPolicy::Report,
        on_target_error: ErrorPolicy::Report,
        on_cbw_error: CbwErrorPolicy::BreakGuestWrite,
        cbw_timeout: None,
        workers_max: 0,
        chunk_max: 0,
        min_cluster_bytes: 0,
        filter: None,
    };
    ((options, Arc::new(Reporter(std::sync::Mutex::new(sender)))), news)
}

const NODES: &str = "file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b \
                     null-co,node-name=n,size=1048576 null-co,node-name=m,size=1048576 a>e b>g";

#[test]
fn the_graph_knows_all_backups_of_one_instant() {
    let mut place = Place::serving(NODES);
    let (first, _news) = backup("j", ("a", "n"));
    let (second, _other) = backup("k", ("b", "m"));
    let mut more = Counted::default();
    place.built.start_backups(&[first, second], BackupChanges::NONE, &mut more).unwrap();
    assert_eq!((more.done, more.taken_back), (1, 0));
    assert_eq!(place.built.graph.model().jobs().collect::<Vec<_>>(), ["j", "k"]);
    for target in ["n", "m"] {
        let refused = place.built.graph.remove(target).unwrap_err().to_string();
        assert!(refused.contains("job"), "{target}: {refused}");
    }
    for id in ["j", "k"] {
        place.built.abort_block_job(id).unwrap();
    }
    for target in ["n", "m"] {
        place.built.graph.remove(target).unwrap();
    }
}

#[test]
fn what_was_done_at_the_instant_stays_if_nothing_can_work_on_the_job() {
    let mut place = Place::serving(NODES);
    let (state, _) = StateFile::open(&place.path("state")).unwrap();
    place.built.keep_state(state).unwrap();
    // More than a state file takes.
    let id = "j".repeat(5 << 20);
    let (job, news) = backup(&id, ("a", "n"));
    let mut more = Counted::default();
    // Guests have gone on with it by then.
    place.built.start_backups(&[job], BackupChanges::NONE, &mut more).unwrap();
    assert_eq!((more.done, more.taken_back), (1, 0));
    let why = loop {
        match news.recv_timeout(LIMIT).unwrap() {
            JobNews::NotServed(why) => break why,
            JobNews::Equal
            | JobNews::DiskFailed(..)
            | JobNews::WorkerEnded(_)
            | JobNews::Failed(_)
            | JobNews::Quiet => {}
        }
    };
    assert!(why.contains("bytes, and at most"), "{why}");
    assert!(place.built.has_block_job(&id));
    place.built.abort_block_job(&id).unwrap();
    assert!(place.built.graph.model().jobs().next().is_none());
    place.client("e").write(0, &[9; 4096], 0).unwrap();
    assert_eq!(fs::read(place.path("a")).unwrap()[..4096], [9; 4096]);
}

#[test]
fn a_node_with_a_job_is_not_opened_anew() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a,read-only=on null-co,node-name=n,size=1048576 a)e",
    );
    let (job, news) = backup("j", ("a", "n"));
    place.built.start_backups(&[job], BackupChanges::NONE, &mut Counted::default()).unwrap();
    let refused = place.built.change_access("a", Access::ReadWrite).unwrap_err();
    assert!(chain_of(&refused).to_string().contains("job"), "{refused}");
    loop {
        match news.recv_timeout(LIMIT).unwrap() {
            JobNews::WorkerEnded(CopyEnd::Done) => {
                if place.built.block_job_worker_ended("j") {
                    break;
                }
            }
            other @ (JobNews::Equal
            | JobNews::DiskFailed(..)
            | JobNews::WorkerEnded(_)
            | JobNews::Failed(_)
            | JobNews::Quiet
            | JobNews::NotServed(_)) => panic!("{other:?}"),
        }
    }
    place.built.finish_block_job("j").unwrap();
    assert!(place.built.change_access("a", Access::ReadWrite).unwrap());
}
