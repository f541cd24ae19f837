//! Iothreads that start when they are needed, and end.
//!
//! Where it stands: beside the request path. Exports place their rings on one of its iothreads; whoever decides about
//! placement starts others, moves rings there and ends what nobody needs.
//!
//! Invariants: a slot has at most one iothread. The one where rings begin runs, so a ring always has a place to begin. An
//! iothread that is told to end is kept until it has ended, so nobody waits for it.
//! Threads: any control thread.
//! Limits: as many iothreads as it has slots.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::work_alarm::WorkAlarm;
use crate::{Iothread, PollSettings, ProcessResources, SpawnError};

/// A pool of iothreads with numbered slots.
#[derive(Debug)]
pub struct IothreadPool {
    name: String,
    host: ProcessResources,
    polling: PollSettings,
    alarm: Arc<WorkAlarm>,
    /// Held while an iothread starts, which may wait for others. Taken before `slots`.
    starts: Mutex<()>,
    /// Held for a moment only.
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    running: Vec<Option<Arc<Iothread>>>,
    /// Where rings begin.
    home: usize,
    /// Those that were told to end.
    ending: Vec<Arc<Iothread>>,
}

impl IothreadPool {
    /// A pool of that name with so many slots, at least one, and an iothread in the first.
    pub fn new(
        name: &str,
        slots: usize,
        host: ProcessResources,
        polling: PollSettings,
    ) -> Result<Self, SpawnError> {
        let alarm = Arc::new(WorkAlarm::default());
        let host = ProcessResources { alarm: Some(Arc::clone(&alarm)), ..host };
        let slots = Slots { running: vec![None; slots.max(1)], home: 0, ending: Vec::new() };
        let (name, starts, slots) = (name.to_owned(), Mutex::default(), Mutex::new(slots));
        let pool = Self { name, host, polling, alarm, starts, slots };
        pool.start(0)?;
        Ok(pool)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What tells of work while whoever decides sleeps.
    pub fn alarm(&self) -> &Arc<WorkAlarm> {
        &self.alarm
    }

    /// How many iothreads it may have.
    pub fn slots(&self) -> usize {
        self.lock().running.len()
    }

    /// The iothread of that slot, which is started if none runs. Waits until it can serve.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn start(&self, slot: usize) -> Result<Arc<Iothread>, SpawnError> {
        // One at a time, and nobody who looks at the pool waits for it.
        let _one = self.starts.lock().expect("no holder of this lock panics");
        if let Some(running) = &self.lock().running[slot] {
            return Ok(Arc::clone(running));
        }
        let name = format!("{}-{slot}", self.name);
        let iothread = Arc::new(Iothread::spawn(&name, self.host.clone(), self.polling)?);
        self.lock().running[slot] = Some(Arc::clone(&iothread));
        Ok(iothread)
    }

    /// Has new rings begin on the iothread of that slot, which is started if none runs.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_home(&self, slot: usize) -> Result<(), SpawnError> {
        // One that somebody has does not end.
        let _started = self.start(slot)?;
        self.lock().home = slot;
        Ok(())
    }

    /// The iothread on which new rings begin.
    pub fn home(&self) -> Arc<Iothread> {
        let slots = self.lock();
        Arc::clone(slots.running[slots.home].as_ref().expect("the one where rings begin runs"))
    }

    /// Has the iothread of that slot end; the slot is free at once. One that serves something stays, or that somebody is
    /// about to place something on, and so does the one where rings begin. Behind fences, where no ring of io_uring can be
    /// made, none ends whose successor would have none: asleep it costs less than that.
    pub fn end(&self, slot: usize) {
        let mut slots = self.lock();
        if slot == slots.home {
            return;
        }
        let empty = slots.running.iter().filter(|it| it.is_none()).count();
        if self.host.confine.is_some() && self.host.spare_rings.left() <= empty {
            return;
        }
        let unused = |it: &mut Arc<Iothread>| Arc::strong_count(it) == 1;
        // Under the lock nobody else gets it; whoever has it is served, or will be.
        if let Some(iothread) = slots.running.get_mut(slot).and_then(|it| it.take_if(unused)) {
            iothread.retire();
            slots.ending.push(iothread);
        }
        slots.ending.retain(|it| !it.has_ended());
    }

    /// The iothreads that run, with their slots.
    pub fn running(&self) -> Vec<(usize, Arc<Iothread>)> {
        let slots = self.lock();
        let running = slots.running.iter().enumerate();
        running.filter_map(|(slot, it)| Some((slot, Arc::clone(it.as_ref()?)))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no holder of this lock panics")
    }
}
