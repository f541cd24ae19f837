//! All daemons that are watched: what each said last, what it did in the last interval, and what is remembered of it.
//!
//! Invariants: rates are made of two snapshots of one connection; a daemon that was gone begins anew. A daemon keeps its number for
//! as long as it is watched.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::history::History;
use crate::labels::labels;
use crate::rates::Rates;
use crate::snapshot::Snapshot;

/// What is told of a daemon by whoever watches it.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// It is waited for longer than usual.
    Waits(String),
    /// What it said.
    Told(Box<Snapshot>),
    /// It cannot be talked to.
    Gone(String),
    /// What came of an order.
    Done(Result<String, String>),
}

/// Whether a daemon can be talked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nothing was heard of it yet, and why, if that takes long.
    New(Option<String>),
    /// It answers.
    Up,
    /// It does not, since then and for that reason.
    Gone { since: Duration, why: String },
}

/// A daemon.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    pub(crate) number: usize,
    pub(crate) socket: PathBuf,
    /// Its short name.
    pub(crate) label: String,
    pub(crate) link: Link,
    pub(crate) last: Option<Snapshot>,
    /// Of the last interval; none until there were two snapshots.
    pub(crate) rates: Option<Rates>,
    pub(crate) history: History,
    /// How many intervals there were.
    pub(crate) intervals: u64,
}

/// All daemons, in the order in which they were named or found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fleet {
    daemons: Vec<Daemon>,
    next: usize,
}

impl Fleet {
    /// Watches one more; gives its number.
    pub(crate) fn add(&mut self, socket: PathBuf) -> usize {
        let number = self.next;
        self.next += 1;
        self.daemons.push(Daemon {
            number,
            socket,
            label: String::new(),
            link: Link::New(None),
            last: None,
            rates: None,
            history: History::default(),
            intervals: 0,
        });
        self.name();
        number
    }

    /// Does not watch it any more.
    pub(crate) fn remove(&mut self, number: usize) {
        self.daemons.retain(|it| it.number != number);
        self.name();
    }

    fn name(&mut self) {
        let labels = labels(self.daemons.iter().map(|it| it.socket.as_path()));
        for (daemon, label) in self.daemons.iter_mut().zip(labels) {
            daemon.label = label;
        }
    }

    /// Takes what was told of a daemon at that time.
    pub(crate) fn hear(&mut self, number: usize, news: News, now: Duration) {
        let Some(daemon) = self.daemons.iter_mut().find(|it| it.number == number) else { return };
        match news {
            News::Waits(sentence) if matches!(daemon.link, Link::New(_)) => {
                daemon.link = Link::New(Some(sentence));
            }
            News::Waits(why) => daemon.lose(now, why),
            News::Gone(why) => daemon.lose(now, why),
            News::Told(snapshot) => daemon.take(*snapshot),
            News::Done(_) => {}
        }
    }

    pub(crate) fn all(&self) -> &[Daemon] {
        &self.daemons
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Daemon> {
        self.daemons.iter().find(|it| it.number == number)
    }

    pub(crate) fn is_watched(&self, socket: &Path) -> bool {
        self.daemons.iter().any(|it| it.socket == socket)
    }
}

impl Daemon {
    fn take(&mut self, snapshot: Snapshot) {
        self.link = Link::Up;
        if let Some(before) = &self.last {
            let Some(rates) = Rates::between(before, &snapshot) else { return };
            self.history.add(before.at, &snapshot, &rates);
            self.rates = Some(rates);
            self.intervals += 1;
        }
        self.last = Some(snapshot);
    }

    fn lose(&mut self, now: Duration, why: String) {
        let since = match self.link {
            Link::Gone { since, .. } => since,
            Link::New(_) | Link::Up => now,
        };
        self.link = Link::Gone { since, why };
        self.last = None;
        self.rates = None;
        self.history.interrupt();
    }

    /// Whether it says what its queues do.
    pub(crate) fn tells_queues(&self) -> bool {
        self.last.as_ref().is_none_or(|it| it.queues.is_some())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::snapshot::{Export, Queue};

    /// What a daemon says that has one export of one queue.
    pub(crate) fn one_queue(at: Duration, reads: u64) -> Snapshot {
        let export = "vm1".to_owned();
        Snapshot {
            at,
            exports: vec![Export { id: export.clone(), ..Export::default() }],
            queues: Some(vec![Queue { export, reads, ..Queue::default() }]),
            ..Snapshot::default()
        }
    }

    fn told(second: u64, reads: u64) -> News {
        News::Told(Box::new(one_queue(Duration::from_secs(second), reads)))
    }

    #[test]
    fn a_daemon_that_was_gone_begins_anew() {
        let mut fleet = Fleet::default();
        let number = fleet.add("/run/vm1/qmp.sock".into());
        let at = Duration::from_secs;
        let iops = |fleet: &Fleet| {
            let rates = fleet.get(number)?.rates.as_ref()?;
            rates.of_export("vm1").map(|it| it.iops.round())
        };
        fleet.hear(number, News::Waits("slow".to_owned()), at(0));
        assert_eq!(fleet.all()[0].link, Link::New(Some("slow".to_owned())));
        fleet.hear(number, told(1, 1000), at(1));
        assert_eq!(iops(&fleet), None);
        fleet.hear(number, told(2, 1500), at(2));
        assert_eq!(iops(&fleet), Some(500.0));
        for second in [3, 4] {
            fleet.hear(number, News::Gone("it has hung up".to_owned()), at(second));
        }
        let since = at(3);
        let why = "it has hung up".to_owned();
        assert_eq!(fleet.all()[0].link, Link::Gone { since, why });
        assert_eq!(iops(&fleet), None);
        fleet.hear(number, told(60, 1_000_000), at(60));
        assert_eq!(iops(&fleet), None);
        fleet.hear(number, told(61, 1_000_010), at(61));
        assert_eq!(iops(&fleet), Some(10.0));
        assert_eq!(fleet.all()[0].intervals, 2);
    }

    #[test]
    fn numbers_stay_and_names_follow() {
        let mut fleet = Fleet::default();
        let first = fleet.add("/run/vm1/qmp.sock".into());
        let second = fleet.add("/run/vm2/qmp.sock".into());
        assert_eq!(fleet.get(second).map(|it| it.label.as_str()), Some("vm2"));
        fleet.remove(first);
        assert_eq!(fleet.get(second).map(|it| it.label.as_str()), Some("qmp.sock"));
        assert!(fleet.is_watched(Path::new("/run/vm2/qmp.sock")));
        assert!(!fleet.is_watched(Path::new("/run/vm1/qmp.sock")));
        fleet.hear(first, told(1, 1), Duration::ZERO);
        assert_eq!(fleet.all().len(), 1);
    }
}
