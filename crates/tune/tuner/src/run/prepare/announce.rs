//! What the user hears before anything takes time: how long, what is left out, what is emulated.

use std::time::Duration;

use anyhow::{Result, bail};
use plan::matrix::Matrix;
use plan::runs::PlannedRun;
use plan::settings::Settings;
use plan::units::{Bytes, Span, counted, human_time};
use plan::weights::weight_of;
use records::results::{RecordedRuns, StoredResults};
use storage::interrupt::Interrupt;
use storage::scratch::{TRIAL_BYTES, fill_rate};
use storage::storages::stays;

use super::PreparedCommand;
use crate::course::Course;
use crate::fleet::Fleet;
use crate::pace::Pace;
use crate::precondition::{PASSES, Settling};
use crate::progress::say;

/// Less than so many times the trial is filled before a trial is worth it.
const TRIAL_SHARE: u64 = 4;

impl PreparedCommand {
    /// What runs take, before any was measured.
    pub(in crate::run) fn pace(&self) -> Pace {
        let emulated = self.fleet.as_ref().is_some_and(Fleet::is_emulated);
        Pace::new(&self.settings, emulated)
    }

    /// Whether a command has anything to measure that there is time for, if its storage took none.
    pub(super) fn may_go_on(&self, stored: Option<&StoredResults>) -> bool {
        stored.is_none_or(|stored| {
            Ahead::new(&self.matrix, &self.settings, &self.pace(), &stored.recorded).may_go_on()
        })
    }

    /// Says what will be done, what will not, and how long it takes; of a command that goes on with stored runs what is left.
    /// Returns how long it may take: nothing if all is done, or no time is left for more.
    ///
    /// # Errors
    /// If the user gave less time than the least takes.
    pub(in crate::run) fn announce(
        &self,
        stored: Option<&StoredResults>,
        interrupt: &Interrupt,
    ) -> Result<Option<Duration>> {
        let Self { settings, matrix, .. } = self;
        let nothing = RecordedRuns::default();
        let recorded = stored.map_or(&nothing, |stored| &stored.recorded);
        let pace = self.pace();
        let ahead = Ahead::new(matrix, settings, &pace, recorded);
        if stored.is_some() && ahead.is_done() {
            say("Nothing is left to be measured.");
            return Ok(None);
        }
        let no_time = || {
            say(&format!(
                "No time is left to measure more, earlier commands spent {}: a longer --budget goes on.",
                human_time(ahead.spent)
            ));
            Ok(None)
        };
        if !ahead.may_go_on() {
            return no_time();
        }
        let fill = self.fill_bytes();
        // Whatever it stumbles over, filling does so too, and says it.
        let tried = fill >= TRIAL_SHARE * TRIAL_BYTES;
        let rate = tried.then(|| fill_rate(&self.directory, interrupt)).and_then(Result::ok);
        let size = Bytes(fill);
        let filling = match (self.has_storage(), self.storage_plan().is_plain()) {
            (has, _) if !has || self.target.is_some() => String::new(),
            (_, true) => format!(", after filling {size} of scratch file"),
            (_, false) => format!(", after filling {size} of scratch files, {} a disk", self.size),
        };
        let fill_time = Pace::filling(fill, rate);
        let settling = settings.precondition.then(|| Settling::all(matrix, settings.seed));
        let settling: Vec<_> =
            settling.into_iter().flatten().flat_map(|cell| cell.outlook()).collect();
        let passes = if settings.precondition { PASSES } else { 0 };
        let bytes = self.target.as_ref().map_or(fill, |target| target.bytes);
        let overwriting = Pace::filling(bytes.saturating_mul(passes), rate);
        let before = Pace::before_runs(fill_time) + overwriting + pace.total(&settling);
        let stays = stays(fill_time, settings.precondition).is_some();
        let pace = if stays { pace } else { pace.with_fill(fill_time) };
        let ahead = Ahead::new(matrix, settings, &pace, recorded);
        let time = ahead.time(before)?;
        let limit = ahead.limit(time);
        if !ahead.goes_on(limit, before) {
            return no_time();
        }
        let some = if settings.adapts() { "some " } else { "" };
        let left = if stored.is_some() { " left" } else { "" };
        say(&format!(
            "About {}: {some}{}{left} ({}, {}){filling}. Seed {}.",
            human_time(time),
            counted(ahead.runs(time, before), "run"),
            counted(matrix.entries.len(), "cell"),
            report::repeats(settings.repeats),
            settings.seed
        ));
        for cell in &settings.cells {
            let weight = weight_of(cell, &settings.weights);
            let weight = weight.map_or_else(String::new, |weight| format!(", weight {weight}"));
            say(&format!("Cell: {cell}{weight}."));
        }
        if let Some(reason) = &self.programs.emulated_because {
            say(&format!("Guests are {}: {reason}.", report::EMULATED));
        }
        for pruned in &matrix.pruned {
            say(&format!("Left out: {pruned}."));
        }
        for cell in &matrix.skipped {
            say(&format!("Skipped: {cell}, it writes (--destructive allows it)."));
        }
        Ok(Some(limit))
    }
}

/// What a command has ahead of it, apart from its storage.
#[derive(Debug)]
struct Ahead<'a> {
    pace: &'a Pace,
    /// Where it is in its runs.
    course: Course<'a>,
    /// The time that the user gave, for all commands.
    budget: Option<Duration>,
    /// What it should have time for.
    wanted: Vec<PlannedRun>,
    /// All that it may measure.
    most: Vec<PlannedRun>,
    /// What its runs should take; with the time of the user at most.
    time: Duration,
    /// To look at everything once and to repeat what matters; `None` if that is done.
    least: Option<Duration>,
    /// What runs of earlier commands took.
    spent: Duration,
}

impl<'a> Ahead<'a> {
    fn new(
        matrix: &'a Matrix,
        settings: &Settings,
        pace: &'a Pace,
        recorded: &RecordedRuns,
    ) -> Self {
        let course = Course::new(matrix, settings, recorded);
        let outlook = |repeats| course.outlook(repeats);
        let (wanted, least, most) = (outlook(None), outlook(Some(0)), outlook(Some(u16::MAX)));
        let spent = pace.spent(&recorded.runs());
        let least = (!least.is_empty()).then(|| pace.total(&least));
        let budget = settings.budget.map(Span::duration);
        let time = if budget.is_some() {
            pace.total(&most)
        } else if settings.adapts() {
            // What is known early leaves its time to what is not: but for no more than is ever measured. The least is measured
            // even if earlier runs spent its time.
            let whole = Course::new(matrix, settings, &RecordedRuns::default()).outlook(None);
            let left = pace.total(&whole).saturating_sub(spent);
            left.max(least.unwrap_or_default()).min(pace.total(&most))
        } else {
            pace.total(&wanted)
        };
        Self { pace, course, budget, wanted, most, time, least, spent }
    }

    /// Whether everything was measured that is asked for.
    fn is_done(&self) -> bool {
        self.course.clone().next(&|_| true).is_none()
    }

    /// How many runs are measured in that time, of which `before` is for the storage: with the time of the user all that fit,
    /// else those that the time is made for.
    fn runs(&self, time: Duration, before: Duration) -> usize {
        if self.budget.is_none() && !self.wanted.is_empty() {
            return self.wanted.len();
        }
        let time = time.saturating_sub(before);
        let counts: Vec<usize> = (1..=self.most.len()).collect();
        counts.partition_point(|&count| self.pace.total(&self.most[..count]) <= time)
    }

    /// When a command that should take `time` ends at the latest.
    fn limit(&self, time: Duration) -> Duration {
        self.budget.map_or(time, |budget| budget.saturating_sub(self.spent))
    }

    /// Whether anything would be measured without time for storage. Too short a budget is for `time` to refuse, which knows
    /// what the storage takes.
    fn may_go_on(&self) -> bool {
        let time = self.time(Duration::ZERO);
        time.map_or(true, |time| self.goes_on(self.limit(time), Duration::ZERO))
    }

    /// Whether anything is measured in that time.
    fn goes_on(&self, time: Duration, before: Duration) -> bool {
        let fits = |block: &[PlannedRun]| before.saturating_add(self.pace.total(block)) <= time;
        self.course.clone().next(&fits).is_some()
    }

    /// How long the command takes, which spends `before` on its storage. A time that the user gave is for the earlier commands,
    /// too.
    fn time(&self, before: Duration) -> Result<Duration> {
        let Some(budget) = self.budget else {
            return Ok(before.saturating_add(self.time));
        };
        let (left, given) = (budget.saturating_sub(self.spent), human_time(budget));
        let Some(least) = self.least.map(|least| before.saturating_add(least)) else {
            return Ok(left.min(before.saturating_add(self.time)));
        };
        match (left < least, self.spent.is_zero()) {
            (false, _) => Ok(left),
            (true, true) => bail!(
                "--budget {given}: to look at everything once and to repeat what matters takes {}",
                human_time(least)
            ),
            (true, false) => bail!(
                "--budget {given}, of which earlier commands spent {}: what is left of looking at everything once \
                 and of repeating what matters takes {}",
                human_time(self.spent),
                human_time(least)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::matrix::Writes;
    use plan::runs::RunKey;
    use plan::testing::settings;
    use plan::variant::Layers;
    use records::results::Line;
    use records::testing::run;

    use super::*;

    struct Command {
        settings: Settings,
        matrix: Matrix,
        pace: Pace,
        lines: Vec<Line>,
    }

    impl Command {
        fn new(line: &str) -> Self {
            let settings = settings(line, 2);
            let matrix =
                Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
            let pace = Pace::new(&settings, false);
            Self { settings, matrix, pace, lines: Vec::new() }
        }

        /// The same command with `--resume`.
        fn resumed(self, line: &str) -> Self {
            Self { lines: self.lines, ..Self::new(line) }
        }

        fn recorded(&self) -> RecordedRuns {
            RecordedRuns::from_iter(self.lines.clone())
        }

        fn course(&self) -> Course<'_> {
            Course::new(&self.matrix, &self.settings, &self.recorded())
        }

        fn ahead(&self) -> Ahead<'_> {
            Ahead::new(&self.matrix, &self.settings, &self.pace, &self.recorded())
        }

        /// Measures on while there is time, on a machine that reaches `iops`; how many runs that are.
        fn measure(&mut self, time: Duration, iops: impl Fn(&RunKey) -> u64) -> usize {
            let Self { settings, matrix, pace, lines } = self;
            let mut course = Course::new(matrix, settings, &RecordedRuns::from_iter(lines.clone()));
            let (before, mut took) = (lines.len(), Duration::ZERO);
            loop {
                let fits = |block: &[PlannedRun]| took + pace.total(block) <= time;
                let Some(block) = course.next(&fits) else { return lines.len() - before };
                for planned in block {
                    let PlannedRun { key, .. } = &planned;
                    let mut run = run(key.cell, key.contender, key.repeat, iops(key));
                    run.key = key.clone();
                    took += pace.expected(&planned);
                    course.measured(&run);
                    lines.push(Line::Run(Box::new(run)));
                }
            }
        }
    }

    fn noisy(key: &RunKey) -> u64 {
        1000 + u64::from(key.repeat * 7 % 5) * 130
    }

    const ONE_CELL: &str = "--op randread --bs 4k";
    const STORAGE: Duration = Duration::from_secs(5);

    #[test]
    fn a_resumed_command_takes_what_is_left() {
        for line in [ONE_CELL, "--op randread --bs 4k --repeats 4"] {
            let mut whole = Command::new(line);
            let runs = whole.measure(Duration::MAX, |_| 1000);
            let mut all = Vec::new();
            for done in 0..=runs {
                let lines = whole.lines[..done].to_vec();
                let command = Command { lines, ..Command::new(line) };
                let ahead = command.ahead();
                let time = ahead.time(Duration::ZERO).unwrap();
                all.push((time, ahead.runs(time, Duration::ZERO), ahead.least, ahead.spent));
            }
            let (first, half, last) = (&all[0], &all[all.len() / 2], all.last().unwrap());
            assert!(first.1 > 15 && first.3.is_zero(), "{line}: {first:?}");
            assert_eq!((last.0, last.1, last.2), (Duration::ZERO, 0, None), "{line}");
            assert!(all.is_sorted_by(|a, b| a.0 >= b.0 && a.1 >= b.1), "{line}");
            let share = half.0.as_secs_f64() / first.0.as_secs_f64();
            assert!((0.3..0.7).contains(&share), "{line}: {share}");
        }
    }

    #[test]
    fn a_budget_is_for_all_commands_and_must_be_enough_for_the_rest() {
        let line = |seconds: u64| format!("{ONE_CELL} --budget {seconds}s");
        let mut begun = Command::new(&line(3600));
        begun.measure(Duration::MAX, |_| 1000);
        let done = begun.ahead();
        // Whatever was spent, what is done takes no more.
        assert_eq!(done.time(STORAGE).unwrap(), STORAGE);
        begun.lines.truncate(begun.lines.len() / 4);
        let (spent, least) = (begun.ahead().spent, begun.ahead().least.unwrap());
        let enough = spent.as_secs() + least.as_secs() + 5 + 2;
        let begun = begun.resumed(&line(enough));
        let left = begun.ahead().time(STORAGE).unwrap();
        assert_eq!(left, Duration::from_secs(enough) - spent);
        let begun = begun.resumed(&line(enough - 4));
        let error = begun.ahead().time(STORAGE).unwrap_err().to_string();
        assert!(error.contains("of which earlier commands spent"), "{error}");
        let error = Command::new(&line(5)).ahead().time(STORAGE).unwrap_err().to_string();
        assert!(!error.contains("earlier") && error.contains("--budget 5 s"), "{error}");
        assert!(begun.pace.spent(&[]).is_zero());
    }

    /// How many runs a command tells, and how many it does.
    fn told_and_done(command: &mut Command) -> (usize, usize) {
        let ahead = command.ahead();
        let time = ahead.time(STORAGE).unwrap();
        let (told, limit) = (ahead.runs(time, STORAGE), ahead.limit(time));
        (told, command.measure(limit - STORAGE, noisy))
    }

    #[test]
    fn as_many_runs_are_announced_as_there_is_time_for() {
        let two = "--op randread,read --bs 4k";
        let short = format!("{two} --budget 80s");
        for (first, longer) in
            [(&*short, "--budget 130s"), (&*short, "--budget 2h"), (two, "--budget 2h")]
        {
            let mut command = Command::new(first);
            let begun = told_and_done(&mut command);
            let mut command = command.resumed(&format!("{two} {longer}"));
            let resumed = told_and_done(&mut command);
            for (told, done) in [begun, resumed] {
                let ratio = told as f64 / done as f64;
                assert!((0.8..1.2).contains(&ratio), "{first}, {longer}: {told} told, {done} done");
            }
            assert_eq!(command.course().next(&|_| true).is_none(), longer == "--budget 2h");
        }
    }

    #[test]
    fn a_command_without_time_for_more_does_not_begin() {
        let goes_on = |command: &Command| {
            let ahead = command.ahead();
            let limit = ahead.limit(ahead.time(STORAGE).unwrap());
            ahead.goes_on(limit, STORAGE)
        };
        let mut command = Command::new(ONE_CELL);
        assert!(goes_on(&command));
        told_and_done(&mut command);
        assert!(!goes_on(&command));
        assert!(!command.ahead().may_go_on(), "before its disk is tried");
        assert_eq!(told_and_done(&mut command), (0, 0));
        assert!(goes_on(&command.resumed(&format!("{ONE_CELL} --budget 2h"))));
    }

    #[test]
    fn the_least_has_its_time_whatever_was_spent() {
        let mut command = Command::new("--op randread --bs 4k --repeats 8-12");
        let first = command.ahead();
        assert_eq!(first.least, Some(first.time), "it is announced");
        command.measure(Duration::MAX, |_| 1000);
        // The first repeats took twice as long.
        command.lines.truncate(command.lines.len() / 2);
        for line in &mut command.lines {
            if let Line::Run(run) = line {
                run.stretched = true;
            }
        }
        let ahead = command.ahead();
        assert_eq!(ahead.time, ahead.least.unwrap());
    }
}
