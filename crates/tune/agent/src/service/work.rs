//! What takes time, of which an agent does one thing at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::{Mouth, Service, disk, fio};
use crate::error::AgentError;
use crate::protocol::{Ask, Tell};

/// Set once what is under way shall end.
#[derive(Clone, Debug, Default)]
pub(super) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is under way, if anything is. It ends with its value.
#[derive(Debug, Default)]
pub(super) struct Work {
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    thread: JoinHandle<()>,
    stop: StopFlag,
    /// Set before its answer is told: whoever has heard that may ask for something else.
    over: Arc<AtomicBool>,
}

impl Work {
    /// Begins, unless something else is under way that nobody has asked to end; what was, is waited for.
    pub(super) fn begin(
        &mut self,
        service: &Service,
        ask: Ask,
        mouth: &Mouth,
    ) -> Result<(), String> {
        let is_ending = |it: &UnderWay| it.stop.is_set() || it.over.load(Ordering::Acquire);
        if self.under_way.as_ref().is_some_and(|it| !is_ending(it)) {
            return Err("something else is under way".to_owned());
        }
        self.wait();
        let (flag, mouth, service) = (StopFlag::default(), mouth.clone(), service.clone());
        let (stop, over) = (flag.clone(), Arc::new(AtomicBool::new(false)));
        let told_over = Arc::clone(&over);
        let carry_out = move || {
            let answer = match ask {
                Ask::Disk { request } => {
                    disk::make_ready(&request, &mouth, &stop).map(|disk| Tell::Disk { disk })
                }
                Ask::Fill { path } => {
                    disk::fill_all(&path, &mouth, &stop).map(|bytes| Tell::Filled { bytes })
                }
                Ask::Run { job, words, start_ns } => {
                    fio::run(&service, &job, &words, start_ns, &mouth, &stop)
                        .map(|end| Tell::Ended { end })
                }
                Ask::Hello { .. }
                | Ask::Alive {}
                | Ask::Clock {}
                | Ask::Meters {}
                | Ask::Stop {}
                | Ask::End {} => return,
            };
            let told = answer.unwrap_or_else(|error| Tell::Failed { why: sentence(&error) });
            told_over.store(true, Ordering::Release);
            // If nobody is left to hear it, the thread that reads knows.
            drop(mouth.say(&told));
        };
        let thread = thread::Builder::new().name("agent work".into()).spawn(carry_out);
        let thread = thread.map_err(|error| format!("start a thread: {error}"))?;
        self.under_way = Some(UnderWay { thread, stop: flag, over });
        Ok(())
    }

    /// Waits for the end of what is ending.
    fn wait(&mut self) {
        if let Some(UnderWay { thread, .. }) = self.under_way.take() {
            // It looks at the flag every few milliseconds, and kills its fio; a panic there has been said already.
            drop(thread.join());
        }
    }

    /// Asks what is under way to end.
    pub(super) fn stop(&self) {
        if let Some(UnderWay { stop, .. }) = &self.under_way {
            stop.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.stop();
        self.wait();
    }
}

/// An error with its causes.
fn sentence(error: &AgentError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |it| it.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
