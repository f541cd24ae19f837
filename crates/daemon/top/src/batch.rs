//! Tables and JSON for scripts and logs: what happened in an interval, printed once it is over.
//!
//! Limits: a daemon that does not answer is waited for [`PATIENCE`] longer than an interval; then it is said on stderr that it has not.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::arguments::TopArgs;
use crate::clock;
use crate::fleet::{Fleet, Link, News};
use crate::json;
use crate::run::TopEnd;
use crate::sources::Sources;
use crate::troubles::{Severity, troubles};
use crate::views::{Table, View, Wanted, padded, table};
use crate::watcher::watch;

/// How much longer than an interval an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints so many intervals of the daemons that there are now.
pub(crate) fn run(
    arguments: &TopArgs,
    sources: &Sources,
    wanted: &Wanted,
    count: u64,
) -> Result<TopEnd> {
    let sockets = sources.find();
    ensure!(!sockets.is_empty(), "no monitors: {}", sources.nothing());
    let (sender, news) = channel();
    let began = clock::now();
    let mut fleet = Fleet::default();
    let mut orders = Vec::new();
    for socket in sockets {
        let number = fleet.add(socket.clone());
        let sender = sender.clone();
        let tell = move |news| sender.send((number, news)).is_ok();
        orders.push(watch(&socket, arguments.interval, began, tell).context("start a thread")?);
    }
    let mut end = TopEnd::Done;
    for interval in 1..=count {
        wait(&mut fleet, &news, began, arguments.interval);
        let now = clock::now().saturating_duration_since(began);
        let told = tell_missing(&fleet);
        if !told.is_empty() {
            end = TopEnd::Incomplete;
        }
        ensure!(fleet.all().iter().any(|it| it.last.is_some()), "{}", told.join("; "));
        for sentence in told {
            // Nobody is left to hear that stderr cannot be written.
            drop(ctl::write(&mut io::stderr().lock(), &format!("ringloom top: {sentence}\n")));
        }
        let troubles = troubles(&fleet, now, arguments.interval);
        let text = if arguments.json {
            let json = json::fleet(&fleet, &troubles, wanted);
            if arguments.once { format!("{json:#}\n") } else { format!("{json}\n") }
        } else {
            let blank = if interval > 1 { "\n" } else { "" };
            format!("{blank}{}", text(&fleet, &troubles, wanted))
        };
        if !ctl::print(&text)? {
            break;
        }
    }
    Ok(end)
}

/// Waits until each daemon has told of another interval, or is gone, or is waited for no longer.
fn wait(fleet: &mut Fleet, news: &Receiver<(usize, News)>, began: Instant, interval: Duration) {
    let before: BTreeMap<usize, u64> =
        fleet.all().iter().map(|it| (it.number, it.intervals)).collect();
    let end = clock::now() + interval * 2 + PATIENCE;
    loop {
        let is_over = fleet.all().iter().all(|it| {
            matches!(it.link, Link::Gone { .. }) || Some(&it.intervals) > before.get(&it.number)
        });
        let left = end.saturating_duration_since(clock::now());
        if is_over && !left.is_zero() {
            return;
        }
        match news.recv_timeout(left) {
            Ok((number, news)) => {
                fleet.hear(number, news, clock::now().saturating_duration_since(began));
            }
            Err(_) => return,
        }
    }
}

/// The daemons of which nothing can be printed, and why.
fn tell_missing(fleet: &Fleet) -> Vec<String> {
    let of = |it: &crate::fleet::Daemon| match &it.link {
        Link::Gone { why, .. } => Some(why.clone()),
        Link::New(Some(why)) => Some(format!("no answer: {why}")),
        Link::New(None) => Some(format!("{}: no answer", it.socket.display())),
        Link::Up if it.rates.is_none() => {
            Some(format!("{}: no second answer", it.socket.display()))
        }
        Link::Up => None,
    };
    fleet.all().iter().filter_map(of).collect()
}

/// What is wrong, then all tables that have rows.
fn text(fleet: &Fleet, all: &[crate::troubles::Trouble], wanted: &Wanted) -> String {
    let mut parts = Vec::new();
    let line = |it: &crate::troubles::Trouble| {
        let mark = match it.severity {
            Severity::Bad => "!!",
            Severity::Warning => "! ",
        };
        format!("{mark} {}: {}\n", it.subject(fleet), it.text)
    };
    if !all.is_empty() {
        parts.push(all.iter().map(line).collect::<String>());
    }
    for view in View::ALL {
        let table = table(view, fleet, all, wanted);
        if !table.rows.is_empty() {
            parts.push(plain(&table));
        } else if matches!(view, View::Exports | View::Queues) {
            parts.push(format!("{}\n", table.nothing));
        }
    }
    parts.join("\n")
}

/// A table without colours and pictures, as `ringloom ctl` has them.
fn plain(table: &Table) -> String {
    let whole = Table { picture: None, ..table.clone() };
    let fit = whole.fit(usize::MAX);
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = fit
            .columns
            .iter()
            .map(|(place, width)| padded(&cell(*place), table.columns[*place].side, *width));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let head = line(&|place| table.columns[place].title.to_owned());
    let rows = table.rows.iter().map(|row| line(&|place| row.cells[place].clone()));
    [head].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::{fleet, wanted};

    #[test]
    fn tables_are_printed_one_below_the_other() {
        let expected = "\
EXPORT   IOPS  READ/s  WRITE/s    P50    P99  OPEN  DEPTH  ERR/s  Q  IOTHREADS  PLACED        TYPE            NODE
vm1     21.0k     82M        0  256µs  256µs     3    5.2      0  2  t0,t1      2 of 4 tries  vhost-user-blk  vm1-disk
vm2         -       -        -      -      -     -      -      -  0  no client  -             vhost-user-blk  vm2-disk

EXPORT  Q  IOTHREAD   IOPS  READ/s  WRITE/s    P50    P99  OPEN  DEPTH  ERR/s  WAIT  MOVES
vm1     1  t1        20.0k     78M        0  256µs  256µs     3      5      0     -      0
vm1     0  t0         1.0k    3.9M        0  256µs  256µs     0    0.2      0     -      0

IOTHREAD  Q   IOPS  CPU  WORK  LOOK  SLEEP  NO CPU
t1        1  20.0k  30%   50%   12%    38%       -
t0        1   1.0k  30%   25%   12%    62%       -

JOB         TYPE    STATUS   DONE    OF        RATE        LEFT   LIMIT  ERROR
backup-vm1  backup  running  2.0M  100M  2%  1.0M/s  1 min 38 s  1.0G/s  -

EXPORT  POOL  MODE  ON  MAX  MORE BRING  NOW             WHAT WAS FOUND LAST
vm1     p     auto   2    4      ≤ +20%  tries 3: +18%?  2 iothreads (was 1): +90 %
";
        let found = text(&fleet(&["vm"], 2), &[], &wanted());
        assert_eq!(found, expected, "{found}");
    }

    #[test]
    fn daemons_that_are_missing_are_told() {
        let mut fleet = fleet(&["vm"], 2);
        assert_eq!(tell_missing(&fleet), Vec::<String>::new());
        fleet.add("/run/other".into());
        assert_eq!(tell_missing(&fleet), ["/run/other: no answer"]);
        fleet.hear(1, News::Gone("nobody serves /run/other".to_owned()), Duration::ZERO);
        assert_eq!(tell_missing(&fleet), ["nobody serves /run/other"]);
    }
}
