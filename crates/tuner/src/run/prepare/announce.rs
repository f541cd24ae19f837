//! What the user hears before anything takes time: how long, what is left out, what is emulated.

use std::time::Duration;

use anyhow::{Result, bail};

use super::Prepared;
use crate::course::Course;
use crate::fleet::Fleet;
use crate::interrupt::Interrupt;
use crate::matrix::Matrix;
use crate::pace::Pace;
use crate::progress::say;
use crate::results::{Recorded, Stored};
use crate::scratch::{TRIAL_BYTES, fill_rate};
use crate::settings::Settings;
use crate::units::{Bytes, Span, counted, human_time};

/// Less than so many times the trial is filled before a trial is worth it.
const TRIAL_SHARE: u64 = 4;

impl Prepared {
    /// What runs take, before any was measured.
    pub(in crate::run) fn pace(&self) -> Pace {
        let emulated = self.fleet.as_ref().is_some_and(Fleet::is_emulated);
        Pace::new(&self.settings, emulated)
    }

    /// Says what will be done, what will not, and how long it takes, which it returns; of a command that goes on with stored
    /// runs what is left.
    ///
    /// # Errors
    /// If the user gave less time than the least takes.
    pub(in crate::run) fn announce(
        &self,
        stored: Option<&Stored>,
        interrupt: &Interrupt,
    ) -> Result<Duration> {
        let Self { settings, matrix, .. } = self;
        let fill = self.fill_bytes();
        // Whatever it stumbles over, filling does so too, and says it.
        let tried = fill >= TRIAL_SHARE * TRIAL_BYTES;
        let rate = tried.then(|| fill_rate(&self.directory, interrupt)).and_then(Result::ok);
        let size = Bytes(fill);
        let filling = match (&self.target, self.storage_plan().is_plain()) {
            (Some(_), _) => String::new(),
            (None, _) if !self.has_storage() => String::new(),
            (None, true) => format!(", after filling {size} of scratch file"),
            (None, false) => format!(", after filling {size} of scratch files"),
        };
        let nothing = Recorded::default();
        let recorded = stored.map_or(&nothing, |stored| &stored.recorded);
        let ahead = Ahead::new(matrix, settings, &self.pace(), recorded);
        let time = ahead.time(settings.budget, Pace::before_runs(fill, rate))?;
        let some = if settings.adapts() { "some " } else { "" };
        let left = if stored.is_some() { " left" } else { "" };
        say(&format!(
            "About {}: {some}{}{left} ({}, {}){filling}. Seed {}.",
            human_time(time),
            counted(ahead.runs, "run"),
            counted(matrix.entries.len(), "cell"),
            crate::report::repeats(settings.repeats),
            settings.seed
        ));
        if let Some(reason) = &self.programs.emulated_because {
            say(&format!("Guests are {}: {reason}.", crate::report::EMULATED));
        }
        for pruned in &matrix.pruned {
            say(&format!("Left out: {pruned}."));
        }
        for cell in &matrix.skipped {
            say(&format!("Skipped: {cell}, it writes (--destructive allows it)."));
        }
        Ok(time)
    }
}

/// What a command has ahead of it, apart from its storage.
#[derive(Debug)]
struct Ahead {
    runs: usize,
    /// What it may take.
    time: Duration,
    /// To look at everything once and to repeat what matters; `None` if that is done.
    least: Option<Duration>,
    /// What runs of earlier commands took.
    spent: Duration,
}

impl Ahead {
    fn new(matrix: &Matrix, settings: &Settings, pace: &Pace, recorded: &Recorded) -> Self {
        let course = Course::new(matrix, settings, recorded);
        let (wanted, least) = (course.outlook(None), course.outlook(Some(0)));
        let spent = pace.spent(&recorded.runs());
        let least = (!least.is_empty()).then(|| pace.total(&least));
        if !settings.adapts() {
            return Self { runs: wanted.len(), time: pace.total(&wanted), least, spent };
        }
        // What is known early leaves its time to what is not: but for no more than is ever measured.
        let most = course.outlook(Some(u16::MAX));
        let whole = Course::new(matrix, settings, &Recorded::default()).outlook(None);
        let time = pace.total(&whole).saturating_sub(spent).min(pace.total(&most));
        let runs = if wanted.is_empty() { most.len() } else { wanted.len() };
        Self { runs, time, least, spent }
    }

    /// How long the command takes, which spends `before` on its storage. A time that the user gave is for the earlier commands,
    /// too.
    fn time(&self, budget: Option<Span>, before: Duration) -> Result<Duration> {
        let Some(budget) = budget.map(Span::duration) else {
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
    use super::*;
    use crate::matrix::Writes;
    use crate::plan::PlannedRun;
    use crate::results::Line;
    use crate::results::tests::run;
    use crate::settings::tests::settings;
    use crate::variant::Layers;

    /// What is ahead of a command, of the one that goes on after each of its runs, and the last.
    fn course(line: &str) -> (Vec<Ahead>, Pace) {
        let settings = settings(line, 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let pace = Pace::new(&settings, false);
        let mut lines = Vec::new();
        let mut course = Course::new(&matrix, &settings, &Recorded::default());
        let mut all = vec![Ahead::new(&matrix, &settings, &pace, &Recorded::default())];
        while let Some(block) = course.next(&|_| true) {
            for PlannedRun { key, .. } in block {
                let mut run = run(key.cell, key.contender, key.repeat, 1000);
                run.key = key;
                course.measured(&run);
                lines.push(Line::Run(Box::new(run)));
                let recorded = Recorded::from(lines.clone());
                all.push(Ahead::new(&matrix, &settings, &pace, &recorded));
            }
        }
        (all, pace)
    }

    #[test]
    fn a_resumed_command_takes_what_is_left() {
        for line in ["--op randread --bs 4k", "--op randread --bs 4k --repeats 4"] {
            let (all, _) = course(line);
            let (first, last) = (&all[0], all.last().unwrap());
            assert!(first.runs > 15 && first.spent.is_zero(), "{line}: {first:?}");
            assert_eq!((last.runs, last.time, last.least), (0, Duration::ZERO, None), "{line}");
            assert!(all.is_sorted_by(|a, b| a.time >= b.time && a.runs >= b.runs), "{line}");
            let half = &all[all.len() / 2];
            let share = half.time.as_secs_f64() / first.time.as_secs_f64();
            assert!((0.3..0.7).contains(&share), "{line}: {share}");
        }
    }

    #[test]
    fn a_budget_is_for_all_commands_and_must_be_enough_for_the_rest() {
        let (all, pace) = course("--op randread --bs 4k --budget 1h");
        let before = Duration::from_secs(5);
        let budget = |seconds: u64| Some(format!("{seconds}s").parse::<Span>().unwrap());
        let half = &all[all.len() / 4];
        let (spent, least) = (half.spent.as_secs(), half.least.unwrap().as_secs());
        let enough = spent + least + 5 + 2;
        let left = half.time(budget(enough), before).unwrap();
        assert_eq!(left, Duration::from_secs(enough) - half.spent);
        let error = half.time(budget(enough - 4), before).unwrap_err().to_string();
        assert!(error.contains("of which earlier commands spent"), "{error}");
        let error = all[0].time(budget(5), before).unwrap_err().to_string();
        assert!(!error.contains("earlier") && error.contains("--budget 5 s"), "{error}");
        // Whatever was spent, what is done takes no more.
        let done = all.last().unwrap().time(budget(3600), before).unwrap();
        assert_eq!(done, before);
        assert!(pace.spent(&[]).is_zero());
    }
}
