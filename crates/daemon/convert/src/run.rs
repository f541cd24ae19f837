//! Has workers of a job served on iothreads until it is over.
//!
//! Threads: that of the command waits; the iothreads are the command's own. Limits: [`THREADS_MAX`] if nothing is said.

use std::error::Error;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use block::Node;
use copy::{CopyEnd, CopyJob, CopyWorker};
use iothread::{
    Iothread, PlacedFrontEnd, PollSettings, ProcessResources, SourceName, SourceObserver,
};
use kernel_io::{Notifier, ReactorChoice};
use request_path::FrontEndSource;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::disks::Disks;

/// The most threads if nothing is said: what reads and writes is the disk then.
const THREADS_MAX: usize = 4;

/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How many threads copy.
pub(crate) fn threads(asked: Option<NonZero<u16>>) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    asked.map_or(cpus.min(THREADS_MAX), |asked| usize::from(asked.get()))
}

/// A flag that SIGINT and SIGTERM raise. A second one ends the process at once.
pub(crate) fn interrupts() -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&raised))?;
        signal_hook::flag::register(signal, Arc::clone(&raised))?;
    }
    Ok(raised)
}

/// Carries a job out on those nodes: source and target, or the source. `look` is called now and then.
pub(crate) fn carry_out(
    disks: &Disks,
    job: &Arc<CopyJob>,
    nodes: &[Arc<dyn Node>],
    threads: usize,
    interrupted: &AtomicBool,
    mut look: impl FnMut(&CopyJob),
) -> Result<()> {
    let (sender, ends) = channel();
    let (mut placed, mut iothreads) = (Vec::new(), Vec::new());
    for number in 0..threads {
        let iothread = Arc::new(Iothread::spawn(
            &format!("copy{number}"),
            resources(disks),
            PollSettings::OFF,
        )?);
        let nobody = Arc::new(Notifier::new()?);
        let source = FrontEndSource::new(CopyWorker::new(job)?, nodes.to_vec(), nobody);
        let queue = u16::try_from(number)?;
        let name = SourceName { export: "copy".to_owned(), queue };
        let observer = Arc::new(EndObserver(Mutex::new(sender.clone())));
        let worker = PlacedFrontEnd::on(&iothread, name, source, observer)
            .map_err(|refused| refused.source)?;
        placed.push(worker);
        iothreads.push(iothread);
    }
    let mut working = threads;
    while working > 0 {
        match ends.recv_timeout(LOOK) {
            Ok(()) => working -= 1,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("each worker tells of its end"),
        }
        if interrupted.load(Ordering::Relaxed) {
            job.cancel();
        }
        look(job);
    }
    for worker in placed {
        drop(worker.stop());
    }
    // The kernel takes its time for each: they end together.
    iothreads.iter().for_each(|iothread| iothread.retire());
    drop(iothreads);
    match job.error() {
        Some(error) => Err(error.into()),
        None if interrupted.load(Ordering::Relaxed) => bail!("interrupted"),
        None => Ok(()),
    }
}

fn resources(disks: &Disks) -> ProcessResources {
    ProcessResources {
        files: Arc::clone(&disks.files),
        clock: Arc::clone(&disks.clock),
        sources: Arc::default(),
        reactors: ReactorChoice::Any,
        spare_rings: Arc::default(),
        confine: None,
        alarm: None,
    }
}

/// Tells the command that a worker has nothing more to do.
#[derive(Debug)]
struct EndObserver(Mutex<Sender<()>>);

impl SourceObserver for EndObserver {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        let end = fault.downcast_ref::<CopyEnd>().expect("a worker has no other faults");
        tracing::debug!("{end}");
        let sender = self.0.lock().expect("no holder of this lock panics");
        sender.send(()).expect("the command waits for all workers");
    }

    fn kicked_while_empty(&self) {}
}
