//! An iothread as control threads see it.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use block::{Clock, GaugeWriter, Node};
use kernel_io::{FileTable, Kernel, KernelError, Notifier, ReactorChoice, SpareRings};
use request_path::Engine;

use crate::SourceRegistry;
use crate::command::{Command, Inbox, Retirement};
use crate::event_loop::EventLoop;
use crate::gauges::{IothreadUsage, LoopGauges, ThreadTimes};
use crate::polling::PollSettings;
use crate::work_alarm::WorkAlarm;

/// The sandbox that a thread enters before it serves anybody.
pub trait Confinement: std::fmt::Debug + Send + Sync {
    /// Puts the fences up that hold for the calling thread, and for those that it will start.
    fn confine(&self) -> io::Result<()>;
}

/// What all iothreads get from their process: file table, clock, choice of reactors, confinement.
#[derive(Debug, Clone)]
pub struct ProcessResources {
    /// The open files.
    pub files: Arc<FileTable>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The sources that are served in the process.
    pub sources: Arc<SourceRegistry>,
    /// What it may wait with.
    pub reactors: ReactorChoice,
    /// Rings for when none can be made any more.
    pub spare_rings: Arc<SpareRings>,
    /// What it gives up once it has its reactor, which may take rights that it will not need again.
    pub confine: Option<Arc<dyn Confinement>>,
    /// Whoever sleeps until it has something to do.
    pub alarm: Option<Arc<WorkAlarm>>,
}

/// A running iothread, as control threads see it. Dropped, it ends; all its sources must have been stopped, or have
/// moved on. The drop waits until what those have left here is over and mailed.
#[derive(Debug)]
pub struct Iothread {
    sources: Arc<SourceRegistry>,
    inbox: Arc<Inbox>,
    usage: IothreadUsage,
    thread: Option<JoinHandle<()>>,
}

/// An iothread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The host gave no thread or eventfd.
    #[error("iothread {name}: cannot start a thread")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its fences could not be put up.
    #[error("iothread {name}: cannot be confined")]
    Confine {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host gave nothing to wait with.
    #[error("iothread {name}")]
    Kernel {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: KernelError,
    },
}

impl Iothread {
    /// Starts an iothread and waits until it can serve. Its reactor is made on the thread
    /// itself, so call it after any fork.
    pub fn spawn(
        name: &str,
        host: ProcessResources,
        settings: PollSettings,
    ) -> Result<Self, SpawnError> {
        let ProcessResources { files, clock, sources, reactors, spare_rings, confine, alarm } =
            host;
        let failed = |source| SpawnError::Thread { name: name.to_owned(), source };
        let notifier = Arc::new(Notifier::new().map_err(failed)?);
        let inbox = Arc::new(Inbox::new(name, Arc::clone(&notifier)));
        let (ready, started) = mpsc::channel();
        let theirs = Arc::clone(&inbox);
        let own_name = name.to_owned();
        // The kernel shows 15 characters of a thread's name.
        let thread = std::thread::Builder::new()
            .name(format!("IO {name}").chars().take(15).collect())
            .spawn(move || {
                // Behind its fences it opens nothing.
                let times = ThreadTimes::of_this();
                files.tell(&notifier);
                let engine = Kernel::with_spare_rings(files, reactors, &spare_rings)
                    .map(|kernel| Engine::with(kernel, notifier, Arc::clone(&clock)))
                    .map_err(|source| SpawnError::Kernel { name: own_name.clone(), source })
                    .and_then(|engine| confined(&own_name, confine.as_deref()).map(|()| engine));
                match engine {
                    Ok(engine) => {
                        tracing::info!("iothread {own_name}: {}", engine.waits_with());
                        let gauges = GaugeWriter::<LoopGauges>::default();
                        let usage = IothreadUsage::new(gauges.gauges(), times, theirs.probe());
                        ready.send(Ok(usage)).expect("the starter waits");
                        let served =
                            EventLoop::new(engine, theirs, settings, clock, (gauges, alarm)).run();
                        // What the kernel lacks for the moment is tried again (`kernel_io::uring`); nothing else
                        // depends on more than the descriptor and the memory of the reactor.
                        served.expect("waiting works while its reactor exists");
                    }
                    Err(error) => ready.send(Err(error)).expect("the starter waits"),
                }
            })
            .map_err(failed)?;
        let usage = started.recv().expect("an iothread says how its start went")?;
        sources.enter_iothread(&inbox);
        Ok(Self { sources, inbox, usage, thread: Some(thread) })
    }

    /// Its name, as in `--object iothread,id=`.
    pub fn name(&self) -> &str {
        self.inbox.name()
    }

    /// What it does with its time.
    pub fn usage(&self) -> &IothreadUsage {
        &self.usage
    }

    /// Gives up the storage that is no file below this node, on which rings are served, as far as this iothread uses it:
    /// requests that wait for it fail soon, so that a stop or a drain need not wait for a server that is gone. Does not
    /// wait.
    pub fn abandon(&self, node: &Arc<dyn Node>) {
        let node = Arc::clone(node);
        self.inbox.call(move |engine| engine.abandon(&node));
    }

    /// Has it look for work by other settings from now on. Does not wait. May be called from any thread.
    pub fn set_polling(&self, settings: PollSettings) {
        self.inbox.send(Command::SetPolling { settings });
    }

    /// Has the thread end as soon as it serves no source and everything is over that was begun there, also what was
    /// abandoned. Until then it serves as before; sources that have left get the outcomes of what they have left behind.
    /// Does not wait. May be called from any thread.
    pub fn retire(&self) {
        self.inbox.send(Command::Retire(Retirement::WhenUnused));
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The sources that are served in its process.
    pub fn sources(&self) -> &Arc<SourceRegistry> {
        &self.sources
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }
}

fn confined(name: &str, confine: Option<&dyn Confinement>) -> Result<(), SpawnError> {
    let Some(confine) = confine else { return Ok(()) };
    confine.confine().map_err(|source| SpawnError::Confine { name: name.to_owned(), source })
}

impl Drop for Iothread {
    fn drop(&mut self) {
        self.inbox.send(Command::Retire(Retirement::WhenOver));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in an iothread ends the process");
        }
    }
}
