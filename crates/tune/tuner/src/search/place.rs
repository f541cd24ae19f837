//! One cell on one variant in a search: what was found so far, and which contenders are worth the next block.
//!
//! What is looked at is the merit by what is wanted. A number that clearly misses a bound in some place is no rival there or
//! elsewhere, and is given up once it was measured as often as it must be.
//!
//! Invariants: only blocks before the one that is asked for decide, so what a resumed search asks for is the same.
//! Not here: repeats, order and time (`search`), what suits all places at once (`overall`).

use std::collections::{BTreeMap, BTreeSet};

use findings::stats::{Estimate, median};
use findings::summary::{Blocks, ENOUGH, Reached, Shares, best, explored, n90};
use plan::contender::{Contender, Iothreads, Subject};
use plan::matrix::Entry;
use plan::question::{Bound, Question, Want};
use plan::runs::{Purpose, RunKey};
use records::results::Run;
use records::steady::UnsteadyRuns;

use super::overall::Overall;

/// Numbers far apart, explored first; the highest of a place is, too.
const FAR_APART: [u16; 5] = [0, 1, 4, 8, 16];
/// How many numbers of a subject are measured again, as a rule.
const AGAIN_MAX: usize = 5;
/// What reached less of the best in every block is given up.
const BEATEN: f64 = 0.85;
/// Intervals become narrower by one rank with every three values.
const LOOKED_AT_EVERY: usize = 3;
/// Explored numbers below this share of the best cannot be those of the 90 % line.
const FAR_BELOW: f64 = 0.7;

/// What uses so much of a bound clearly misses it.
const MISSED: f64 = 1.1;

/// One entry of the matrix with what is known of it.
#[derive(Clone, Debug)]
pub(super) struct SearchedCell<'a> {
    pub(super) entry: &'a Entry,
    /// Ramp and runtime are so many times the usual ones where the explored runs were not steady.
    pub(super) stretch: u32,
    want: Want,
    bounds: Vec<Bound>,
    /// The number that is in use: explored and measured again in any case.
    today: Option<Iothreads>,
    /// What is explored first.
    pub(super) first: Vec<Contender>,
    explored: BTreeMap<Contender, Exploration>,
    /// By repeat.
    again: BTreeMap<Contender, BTreeMap<u16, RunMerit>>,
    /// Repeats that failed.
    failed: BTreeMap<Contender, BTreeSet<u16>>,
    /// What is measured again, and from which repeat on.
    chosen: BTreeMap<Contender, u16>,
    /// Numbers that clearly miss a bound here or elsewhere.
    missing: Vec<Contender>,
}

/// What a run says of the question.
#[derive(Clone, Copy, Debug)]
struct RunMerit {
    /// Nothing where nothing was done.
    merit: f64,
    /// How much of the bounds it uses, of the one of which that is most; nothing without bounds.
    used: f64,
}

#[derive(Clone, Debug, Default)]
struct Exploration {
    runs: UnsteadyRuns,
    /// Of the best run.
    merit: Option<f64>,
    used: Option<f64>,
}

impl<'a> SearchedCell<'a> {
    /// A place of which nothing is known; `full` explores all numbers.
    pub(super) fn new(entry: &'a Entry, full: bool, question: &Question) -> Self {
        let is_first = |contender: &Contender| match contender.number() {
            Some(count) => {
                full || question.today == Some(count)
                    || is_far_apart(count, &counts(entry, contender.subject()))
            }
            None => true,
        };
        Self {
            entry,
            stretch: 1,
            want: question.want,
            bounds: question.bounds.clone(),
            today: question.today,
            first: entry.contenders.iter().copied().filter(is_first).collect(),
            explored: BTreeMap::new(),
            again: BTreeMap::new(),
            failed: BTreeMap::new(),
            chosen: BTreeMap::new(),
            missing: Vec::new(),
        }
    }

    pub(super) fn measured(&mut self, run: &Run) {
        let contender = run.key.contender;
        // A rate that is no number is reported, but decides nothing.
        if !run.iops().is_finite() {
            return;
        }
        let figures = run.figures();
        let merit = figures.merit(self.want).unwrap_or(0.0);
        let used = self.bounds.iter().map(|bound| bound.used(&figures)).fold(0.0, f64::max);
        if run.key.purpose == Purpose::Sweep {
            let explored = self.explored.entry(contender).or_default();
            explored.runs.note(run.steadiness());
            explored.merit = self::explored(explored.merit.into_iter().chain([merit]));
            explored.used = Some(explored.used.map_or(used, |other| other.min(used)));
        } else if run.key.purpose == Purpose::Confirm {
            self.again
                .entry(contender)
                .or_default()
                .insert(run.key.repeat, RunMerit { merit, used });
            // A resumed search measures on as it began.
            self.stretch = run.stretch();
        }
    }

    pub(super) fn failed(&mut self, key: &RunKey) {
        if key.purpose == Purpose::Confirm {
            self.failed.entry(key.contender).or_default().insert(key.repeat);
        }
    }

    /// Whether nothing is left out at first.
    pub(super) fn is_whole(&self) -> bool {
        self.first.len() == self.entry.contenders.len()
    }

    /// Whether no subject has more numbers than are measured again.
    pub(super) fn has_few_numbers(&self) -> bool {
        self.subjects().into_iter().all(|it| counts(self.entry, it).len() <= AGAIN_MAX)
    }

    /// Whether something was measured again already.
    pub(super) fn is_begun(&self) -> bool {
        !self.again.is_empty()
    }

    /// Which of the explored runs were not steady.
    pub(super) fn unsteady_runs(&self) -> UnsteadyRuns {
        self.explored.values().map(|explored| explored.runs).sum()
    }

    /// Whether a run with this key is one of this place.
    pub(super) fn is_of(&self, key: &RunKey) -> bool {
        self.entry.variant == key.variant && self.entry.cells[0] == key.cell
    }

    /// Neighbours of the best, of the 90 % line and of what suits all places, that were not explored first.
    pub(super) fn closer(&self, overall: &Overall) -> Vec<Contender> {
        let mut closer = Vec::new();
        for subject in self.subjects() {
            let shares = overall.rivals(subject, self.shares(subject, 0));
            let near = [best(&shares), n90(&shares)].into_iter().flatten();
            let near: Vec<Iothreads> = near.chain(overall.fewest(subject)).collect();
            let all = counts(self.entry, subject);
            for (index, count) in all.iter().enumerate() {
                let beside = [index.checked_sub(1), Some(index + 1)];
                let mut beside = beside.iter().flatten().filter_map(|index| all.get(*index));
                if beside.any(|other| near.contains(other)) {
                    closer.push(Contender::new(subject, *count));
                }
            }
        }
        closer.retain(|contender| !self.first.contains(contender));
        closer
    }

    /// Settles what is measured again: whatever has no number, as the host and auto, none, the number in use, the best two, the two closest to the 90 % line,
    /// and what suits all places; all numbers, if they are few, since one explored run may have stalled.
    pub(super) fn choose(&mut self, overall: &Overall) {
        let uncounted = |contender: &&Contender| contender.number().is_none();
        let mut chosen: Vec<Contender> =
            self.entry.contenders.iter().filter(uncounted).copied().collect();
        for subject in self.subjects() {
            let mut shares = overall.rivals(subject, self.shares(subject, 0));
            let mut counts = vec![Iothreads::NONE];
            counts.extend(self.today);
            counts.extend(overall.good(subject));
            let all = self::counts(self.entry, subject);
            counts.extend(all.iter().filter(|_| all.len() <= AGAIN_MAX));
            shares.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
            let near = shares.iter().filter(|(_, share)| *share >= FAR_BELOW);
            counts.extend(near.map(|(count, _)| *count).take(2));
            shares.sort_by(|a, b| b.1.total_cmp(&a.1));
            counts.extend(shares.iter().map(|(count, _)| *count).take(2));
            chosen.extend(counts.into_iter().map(|count| Contender::new(subject, count)));
        }
        self.add(chosen, 0);
        self.missing = overall.missing();
    }

    /// Adds what the blocks before this repeat show to matter: the best, those at the 90 % line, and what suits all places.
    /// The answer must not rest on what was only explored.
    pub(super) fn grow(&mut self, overall: &Overall, repeat: u16) {
        let mut more = Vec::new();
        for subject in self.subjects() {
            let shares = overall.rivals(subject, self.shares(subject, repeat));
            let enough = n90(&shares);
            let below = shares.iter().rev().find(|(count, _)| Some(*count) < enough);
            let mut counts: Vec<Iothreads> = overall.good(subject).collect();
            counts.extend([best(&shares), enough, below.map(|it| it.0)].into_iter().flatten());
            more.extend(counts.into_iter().map(|count| Contender::new(subject, count)));
        }
        self.add(more, repeat);
        self.missing = overall.missing();
    }

    fn add(&mut self, mut contenders: Vec<Contender>, from: u16) {
        contenders.retain(|contender| self.entry.contenders.contains(contender));
        for contender in contenders {
            self.chosen.entry(contender).or_insert(from);
        }
    }

    /// Who takes part in this repeat, told from those before it: up to `least` all, then those that are not beaten and did not
    /// always fail; as soon as there are intervals only while one of them is not known well enough.
    pub(super) fn open(&self, repeat: u16, least: u16) -> Vec<Contender> {
        let here = self.chosen.iter().filter(|(_, from)| **from <= repeat);
        let is_open = |&(contender, from): &(&Contender, &u16)| {
            let given_up =
                || self.is_beaten(*contender, repeat) || self.fails(*contender, repeat, least);
            repeat < from + least || !given_up()
        };
        let open: Vec<Contender> = here.filter(is_open).map(|(contender, _)| *contender).collect();
        let known = |contender: &Contender, at: u16| {
            let before = self.before(*contender, at).map(|(_, merit)| merit);
            Estimate::of(before).is_some_and(|estimate| estimate.is_narrow())
        };
        let is_over = looked_at(repeat, least).any(|at| open.iter().all(|it| known(it, at)));
        if is_over { Vec::new() } else { open }
    }

    /// What is explored at first, and what the look closer will probably add.
    pub(super) fn outlook_explored(&self) -> Vec<Contender> {
        let mut all = self.first.clone();
        for subject in self.subjects() {
            let others = counts(self.entry, subject).into_iter();
            let others = others.map(|count| Contender::new(subject, count));
            all.extend(others.filter(|it| !self.first.contains(it)).take(2));
        }
        all
    }

    /// So many contenders will probably be measured again.
    pub(super) fn outlook_again(&self) -> Vec<Contender> {
        let mut all: Vec<Contender> = self.entry.contenders.clone();
        let mut seen: BTreeMap<Subject, usize> = BTreeMap::new();
        all.retain(|contender| {
            if contender.number().is_none() {
                return true;
            }
            let seen = seen.entry(contender.subject()).or_default();
            *seen += 1;
            *seen <= AGAIN_MAX
        });
        all
    }

    /// The subjects whose numbers are compared.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let counted = self.entry.contenders.iter().filter(|it| it.number().is_some());
        let mut subjects: Vec<Subject> = counted.map(|contender| contender.subject()).collect();
        subjects.dedup();
        subjects
    }

    /// What each number reached of the best, by the blocks before this repeat where it was in some, else when it was
    /// explored; in ascending order of numbers.
    pub(super) fn shares(&self, subject: Subject, repeat: u16) -> Shares {
        let of = |contender: &Contender| {
            let explored = self.explored.get(contender).and_then(|explored| explored.merit);
            let blocks: Vec<(u16, f64)> = self.before(*contender, repeat).collect();
            Some(Reached { iothreads: contender.number()?, blocks, explored })
        };
        let own = self.entry.contenders.iter().filter(|it| it.subject() == subject);
        let mut reached: Vec<Reached> = own.filter_map(of).collect();
        if reached.iter().all(|it| it.blocks.is_empty()) {
            for one in &mut reached {
                one.blocks = one.explored.into_iter().map(|merit| (0, merit)).collect();
            }
        }
        Blocks::of(reached).all_shares()
    }

    fn before(&self, contender: Contender, repeat: u16) -> impl Iterator<Item = (u16, f64)> {
        self.runs_before(contender, repeat).map(|(repeat, measured)| (repeat, measured.merit))
    }

    fn runs_before(
        &self,
        contender: Contender,
        repeat: u16,
    ) -> impl Iterator<Item = (u16, RunMerit)> {
        let runs = self.again.get(&contender).into_iter().flatten();
        runs.map(|(repeat, run)| (*repeat, *run)).filter(move |(other, _)| *other < repeat)
    }

    /// The numbers of a subject that clearly miss a bound, by the blocks before this repeat or else when they were explored.
    pub(super) fn missing(&self, subject: Subject, repeat: u16) -> Vec<Iothreads> {
        let misses = |count: &Iothreads| {
            let contender = Contender::new(subject, *count);
            let again = self.runs_before(contender, repeat).map(|(_, run)| run.used);
            let again = median(&mut again.collect::<Vec<_>>());
            let used = again.or_else(|| self.explored.get(&contender)?.used);
            used.is_some_and(|used| used > MISSED)
        };
        counts(self.entry, subject).into_iter().filter(misses).collect()
    }

    /// Whether it was tried `least` times and did no request in any of them.
    fn fails(&self, contender: Contender, repeat: u16, least: u16) -> bool {
        let failed = self.failed.get(&contender).into_iter().flatten();
        let failed = failed.filter(|other| **other < repeat).count();
        let (mut tried, mut works) = (failed, false);
        for (_, merit) in self.before(contender, repeat) {
            tried += 1;
            works |= merit > 0.0;
        }
        !works && tried >= usize::from(least)
    }

    /// Whether it misses a bound, or stayed far below the best in all blocks; the baseline never is.
    fn is_beaten(&self, contender: Contender, repeat: u16) -> bool {
        if contender.number().is_none_or(|count| count == Iothreads::NONE) {
            return false;
        }
        if self.missing.contains(&contender) {
            return true;
        }
        let subject = contender.subject();
        let own = self.entry.contenders.iter().filter(|it| it.subject() == subject);
        let tried = own.filter(|it| self.before(**it, repeat).next().is_some());
        let tried: Vec<Iothreads> = tried.filter_map(|it| it.number()).collect();
        let mut shares = self.shares(subject, repeat);
        let misses = |count| self.missing.contains(&Contender::new(subject, count));
        shares.retain(|(count, _)| tried.contains(count) && !misses(*count));
        let Some(rival) = best(&shares).map(|count| Contender::new(subject, count)) else {
            return false;
        };
        let close = |(block, merit): (u16, f64)| {
            let most = self.before(rival, repeat).find(|(other, _)| *other == block);
            most.map(|(_, most)| merit > BEATEN * most)
        };
        let blocks: Vec<bool> = self.before(contender, repeat).filter_map(close).collect();
        !blocks.is_empty() && blocks.iter().all(|close| !close)
    }
}

/// Before which repeats, up to this one, the intervals are looked at. Each look may stop at a lucky one, so there are few: an
/// interval of seven or eight values is no narrower than one of six, but by luck.
fn looked_at(repeat: u16, least: u16) -> impl Iterator<Item = u16> {
    (least.max(super::INTERVAL_FROM)..=repeat).step_by(LOOKED_AT_EVERY)
}

/// How far a share is from the 90 % line.
fn distance(share: f64) -> f64 {
    (share - ENOUGH).abs()
}

fn counts(entry: &Entry, subject: Subject) -> Vec<Iothreads> {
    let own = entry.contenders.iter().filter(|contender| contender.subject() == subject);
    own.filter_map(|contender| contender.number()).collect()
}

fn is_far_apart(count: Iothreads, all: &[Iothreads]) -> bool {
    FAR_APART.contains(&count.count()) || all.last() == Some(&count)
}
