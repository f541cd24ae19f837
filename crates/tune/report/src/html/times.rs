//! What changed with time: the sentinels from the first to the last, and the five windows inside the runs. Pure functions.

use findings::stats::Estimate;
use maud::{Markup, html};
use plan::contender::{Contender, Subject};
use plan::lists::unique;
use plan::runs::Purpose;
use records::calendar::time_of_day;
use records::results::Run;

use super::charts::{plain, rounded};
use super::plot::{Across, Mark, Plot, Range, Scale, Series};
use super::{View, class, figure};
use crate::text::short;

/// Fewer show no course.
const SENTINELS_MIN: usize = 3;
const WINDOWS: [&str; 5] = ["1st", "2nd", "3rd", "4th", "5th"];

/// Nothing where neither was recorded.
pub(super) fn render(view: &View<'_>) -> Markup {
    let runs = view.report.findings.runs;
    let (over, within) = (over_all(runs), within_runs(view));
    if over.is_none() && within.is_none() {
        return Markup::default();
    }
    html! {
        section id="times" {
            h2 { "Over time" }
            p class="lead" {
                "Left: the same run again and again (sentinels); the notes say if it drifted. Right: each fifth of a run relative to \
                 the whole run, median and range of all runs; what begins higher or lower needs a longer --ramp."
            }
            div class="charts two" {
                (figure("Sentinels, IOPS by time of day (UTC)", over))
                (figure("Within a run, % of its mean", within))
            }
        }
    }
}

fn over_all(runs: &[Run]) -> Option<Markup> {
    let mut sentinels: Vec<&Run> =
        runs.iter().filter(|run| run.key.purpose == Purpose::Sentinel).collect();
    sentinels.sort_by_key(|run| (run.key.step, run.started_unix_s));
    let steps = unique(sentinels.iter().map(|run| run.key.step));
    if steps.len() < SENTINELS_MIN {
        return None;
    }
    let minute = |step: &u32| {
        let first = sentinels.iter().find(|run| run.key.step == *step)?;
        Some(time_of_day(first.started_unix_s))
    };
    let categories: Vec<String> = steps.iter().filter_map(minute).collect();
    let mark = |run: &Run| {
        let slot = steps.iter().position(|step| *step == run.key.step)?;
        let time = time_of_day(run.started_unix_s);
        let title = format!("{} at {time}: {} IOPS", run.key.contender, short(run.iops()));
        Some(Mark::new(slot, run.iops(), title))
    };
    let series = |contender: Contender| {
        let own = sentinels.iter().filter(|run| run.key.contender == contender);
        of(contender.subject(), own.filter_map(|run| mark(run)).collect())
    };
    let contenders = unique(sentinels.iter().map(|run| run.key.contender));
    chart("Sentinels by time", &categories, rounded, contenders.into_iter().map(series).collect())
}

fn within_runs(view: &View<'_>) -> Option<Markup> {
    let runs = || view.report.findings.runs.iter().filter(|run| run.key.purpose.is_compared());
    let shares = |subject: Subject, window: usize| {
        let own = runs().filter(move |run| run.key.contender.subject() == subject);
        Estimate::of(own.filter_map(move |run| share(run, window)))
    };
    let series = |subject: Subject| {
        let mark = |(slot, name): (usize, &&str)| {
            let share = shares(subject, slot)?;
            let title = format!(
                "{subject}, {name} fifth: {:.0} % ({:.0}–{:.0})",
                share.median, share.lowest, share.highest
            );
            let range = Some(Range::Spread { low: share.lowest, high: share.highest });
            Some(Mark { range, ..Mark::new(slot, share.median, title) })
        };
        of(subject, WINDOWS.iter().enumerate().filter_map(mark).collect())
    };
    let series = view.subjects.iter().copied().map(series).collect();
    chart("Rate within a run", &WINDOWS.map(str::to_owned), plain, series)
}

/// The rate of a fifth of a run in percent of that of all five.
fn share(run: &Run, window: usize) -> Option<f64> {
    let rate = |windows: &[(u64, u64)]| {
        let (ns, requests) = windows.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        requests as f64 / ns as f64
    };
    let own = run.windows.get(window..=window)?;
    Some(rate(own) / rate(&run.windows) * 100.0)
}

fn of(subject: Subject, marks: Vec<Mark>) -> Series {
    Series { subject: subject.to_string(), class: class(subject), nth: 0, marks }
}

fn chart(
    title: &str,
    categories: &[String],
    label: fn(f64) -> String,
    series: Vec<Series>,
) -> Option<Markup> {
    let scale = Scale::Linear;
    let across = Across::Names;
    Plot { title, description: title, categories, scale, label, limit: None, across, series }.svg()
}
