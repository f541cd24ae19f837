//! Looks at the files below exports one after the other, and goes on with the others when one hangs.
//!
//! Where it stands: a thread asks file systems about the files of each export; whoever watches that thread
//! ([`FileWatch::supervise`], which never waits) leaves it alone with a file that does not answer, and starts another one.
//!
//! Invariants: no export is asked about by two threads. A thread that was left alone ends when its file answers, after which
//! the export is looked at as before.
//! Threads: `file watch`, one and those that hang. Limits: [`HUNG_MAX`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant};

use block::Clock;
use exports::{ExportedDisk, StorageCondition};

use super::LOOK_EVERY;

/// How long a file may take to answer before the others are looked at without it.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// How many exports may have files that hang. When one more does, no file is looked at until one of them answers.
const HUNG_MAX: usize = 16;

/// What stands on files that can be looked at.
pub(super) trait StorageUser: Send + Sync + 'static {
    /// The name of the export.
    fn export(&self) -> &str;

    /// Looks at its files. May block for ever.
    fn examine(&self) -> StorageCondition;
}

impl StorageUser for ExportedDisk {
    fn export(&self) -> &str {
        &self.id
    }

    fn examine(&self) -> StorageCondition {
        self.size.examine()
    }
}

/// Those that there are now.
type AllUsers<U> = Box<dyn Fn() -> Vec<Arc<U>> + Send + Sync>;

/// What all threads that look at files share.
pub(super) struct FileWatch<U> {
    all: AllUsers<U>,
    clock: Arc<dyn Clock>,
    state: Mutex<FileWatchState<U>>,
    /// Notified when all is over.
    changed: Condvar,
}

struct FileWatchState<U> {
    is_over: bool,
    /// The thread that looks now. Earlier ones hang, or have ended.
    thread: u64,
    /// What it looks at, and since when.
    looking: Option<(Arc<U>, Instant)>,
    /// What earlier ones look at.
    hung: Vec<Arc<U>>,
    /// What was found of each export the last time.
    found: BTreeMap<String, StorageCondition>,
}

impl<U> fmt::Debug for FileWatch<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch").finish_non_exhaustive()
    }
}

/// What a thread does with an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    Look,
    /// Another thread hangs on it.
    PassOver,
    /// Another thread goes on, or all is over.
    End,
}

impl<U: StorageUser> FileWatch<U> {
    /// Starts to look, with the fences of the calling thread.
    pub(super) fn start(all: AllUsers<U>, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let state = FileWatchState {
            is_over: false,
            thread: 0,
            looking: None,
            hung: Vec::new(),
            found: BTreeMap::new(),
        };
        let watch = Self { all, clock, state: Mutex::new(state), changed: Condvar::new() };
        let watch = Arc::new(watch);
        watch.start_thread(0)?;
        Ok(watch)
    }

    fn start_thread(self: &Arc<Self>, number: u64) -> io::Result<()> {
        let watch = Arc::clone(self);
        Builder::new().name("file watch".to_owned()).spawn(move || watch.run(number)).map(drop)
    }

    /// What was found of each export the last time.
    pub(super) fn found(&self) -> Vec<(String, StorageCondition)> {
        self.state().found.iter().map(|(export, found)| (export.clone(), *found)).collect()
    }

    /// No thread begins to look any more. Waits for none.
    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Has another thread go on if a file does not answer.
    pub(super) fn supervise(self: &Arc<Self>, now: Instant) {
        let mut state = self.state();
        let hangs = |(_, since): &mut (Arc<U>, Instant)| {
            now.saturating_duration_since(*since) >= HANGS_AFTER
        };
        if state.is_over || state.hung.len() == HUNG_MAX {
            return;
        }
        let Some((user, _)) = state.looking.take_if(hangs) else { return };
        let seconds = HANGS_AFTER.as_secs();
        tracing::warn!(
            "export {}: its file system has not answered for {seconds} s what is asked about its files; those of other \
             exports are looked at meanwhile",
            user.export()
        );
        state.hung.push(user);
        state.thread += 1;
        let number = state.thread;
        drop(state);
        if let Err(error) = self.start_thread(number) {
            tracing::error!("files are not looked at any more: {error}");
        }
    }

    fn run(&self, number: u64) {
        loop {
            for user in (self.all)() {
                match self.begin(&user, number) {
                    NextStep::Look => {}
                    NextStep::PassOver => continue,
                    NextStep::End => return,
                }
                let found = user.examine();
                if self.finish(&user, found, number) == NextStep::End {
                    return;
                }
            }
            if !self.wait_for_next_round(number) {
                return;
            }
        }
    }

    /// Forgets what is not there any more, and waits; whether there is to be another round.
    fn wait_for_next_round(&self, number: u64) -> bool {
        let there: Vec<String> = (self.all)().iter().map(|user| user.export().to_owned()).collect();
        let mut state = self.state();
        state.found.retain(|export, _| there.contains(export));
        let goes_on = |state: &mut FileWatchState<U>| state.next_step(number) != NextStep::End;
        let waited = self.changed.wait_timeout_while(state, LOOK_EVERY, goes_on);
        let (mut state, _) = waited.expect("no holder of this lock panics");
        goes_on(&mut state)
    }

    fn begin(&self, user: &Arc<U>, number: u64) -> NextStep {
        let now = self.clock.now();
        let mut state = self.state();
        let step = state.next_step(number);
        if step == NextStep::Look && state.hung.iter().any(|hung| Arc::ptr_eq(hung, user)) {
            return NextStep::PassOver;
        }
        if step == NextStep::Look {
            state.looking = Some((Arc::clone(user), now));
        }
        step
    }

    fn finish(&self, user: &Arc<U>, found: StorageCondition, number: u64) -> NextStep {
        let mut state = self.state();
        state.found.insert(user.export().to_owned(), found);
        let hung = state.hung.len();
        state.hung.retain(|hung| !Arc::ptr_eq(hung, user));
        let step = state.next_step(number);
        if step == NextStep::Look {
            state.looking = None;
        }
        if state.hung.len() < hung {
            tracing::info!("export {}: its file system answers again", user.export());
        }
        step
    }

    fn state(&self) -> MutexGuard<'_, FileWatchState<U>> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl<U> FileWatchState<U> {
    fn next_step(&self, number: u64) -> NextStep {
        if self.is_over || self.thread != number { NextStep::End } else { NextStep::Look }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use block::SystemClock;

    use super::*;

    /// How long a test waits for a thread.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Says when it is looked at, and may hang then.
    #[derive(Debug)]
    struct Told {
        name: &'static str,
        looks: Sender<&'static str>,
        hangs: Mutex<Option<Receiver<()>>>,
    }

    impl StorageUser for Told {
        fn export(&self) -> &str {
            self.name
        }

        fn examine(&self) -> StorageCondition {
            let _nobody_waits = self.looks.send(self.name);
            let hangs = self.hangs.lock().unwrap().take();
            if let Some(hangs) = hangs {
                hangs.recv().expect_err("nothing is ever sent");
            }
            StorageCondition { is_removed: true, size_difference: 0 }
        }
    }

    fn names(watch: &FileWatch<Told>) -> Vec<String> {
        watch.found().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_file_that_hangs_keeps_no_other_from_being_looked_at() {
        let (looks, looked) = channel();
        let user =
            |name, hangs| Arc::new(Told { name, looks: looks.clone(), hangs: Mutex::new(hangs) });
        let (end, hangs) = channel();
        let all = vec![user("a", None), user("b", Some(hangs)), user("c", None)];
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let watch = FileWatch::start(Box::new(move || all.clone()), clock).unwrap();
        let next = || looked.recv_timeout(LIMIT).expect("a thread looks");
        assert_eq!([next(), next()], ["a", "b"]);
        // It may be slow only.
        watch.supervise(SystemClock.now());
        assert_eq!(watch.state().thread, 0);
        let later = SystemClock.now() + HANGS_AFTER;
        watch.supervise(later);
        assert_eq!([next(), next(), next()], ["a", "c", "a"]);
        assert_eq!(names(&watch), ["a", "c"]);
        // Once it answers it is looked at as the others.
        drop(end);
        while next() != "b" {}
        while !watch.state().hung.is_empty() {
            next();
        }
        assert_eq!(
            (names(&watch), watch.state().thread),
            (vec!["a".into(), "b".into(), "c".into()], 1)
        );
        watch.end();
    }

    #[test]
    fn so_many_threads_hang_and_no_more() {
        let (looks, looked) = channel();
        let (ends, hangs): (Vec<_>, Vec<_>) = (0..HUNG_MAX + 2).map(|_| channel::<()>()).unzip();
        let user = |hangs| {
            Arc::new(Told { name: "x", looks: looks.clone(), hangs: Mutex::new(Some(hangs)) })
        };
        let all: Vec<_> = hangs.into_iter().map(user).collect();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let watch = FileWatch::start(Box::new(move || all.clone()), clock).unwrap();
        for hung in 0..=HUNG_MAX {
            looked.recv_timeout(LIMIT).expect("a thread looks");
            assert_eq!(watch.state().hung.len(), hung);
            watch.supervise(SystemClock.now() + HANGS_AFTER);
        }
        assert_eq!(watch.state().hung.len(), HUNG_MAX);
        watch.end();
        drop(ends);
    }
}
