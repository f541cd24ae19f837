//! The first lines: whether anything is wrong, the sums of all daemons, the views; then what is wrong, one line each.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::theme::{Theme, Tone};
use super::{counted, marked, write};
use crate::app::App;
use crate::fleet::{Daemon, Fleet};
use crate::numbers;
use crate::snapshot::Job;
use crate::troubles::Trouble;
use crate::views::{Side, View, padded};

/// Draws them; gives how many rows they take, and how many troubles and notes take below them.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    app: &App,
    troubles: &[Trouble],
    (now, theme): (Duration, Theme),
) -> (u16, u16) {
    let (fleet, _) = app.shown(now);
    let width = usize::from(area.width);
    let lines = [
        state(fleet, app, troubles, (theme, width)),
        Line::raw(sums(fleet)),
        views(fleet, app, theme, width),
    ];
    for (row, line) in (0..).zip(&lines) {
        write(frame, area, row, line);
    }
    let shown = told(fleet, troubles, (trouble_rows(area.height), width), theme);
    for (row, line) in (3..).zip(&shown) {
        write(frame, area, row, line);
    }
    (3, u16::try_from(shown.len()).unwrap_or(0))
}

/// How many rows what is wrong may take.
fn trouble_rows(height: u16) -> usize {
    usize::from((height / 6).clamp(2, 12))
}

/// Two texts at both ends of a line.
fn ends(mut left: Vec<Span<'static>>, right: Vec<Span<'static>>, width: usize) -> Line<'static> {
    let length = |spans: &[Span<'_>]| -> usize { spans.iter().map(Span::width).sum() };
    let used = length(&left) + length(&right);
    left.push(Span::raw(" ".repeat(width.saturating_sub(used).max(1))));
    left.extend(right);
    Line::from(left)
}

fn state(
    fleet: &Fleet,
    app: &App,
    troubles: &[Trouble],
    (theme, width): (Theme, usize),
) -> Line<'static> {
    let daemons = fleet.all();
    let last = || daemons.iter().filter_map(|it| it.last.as_ref());
    let exports: usize = last().map(|it| it.exports.len()).sum();
    let queues: usize = last().map(|it| it.queues.iter().flatten().count()).sum();
    let (text, tone) = match counted(troubles) {
        (0, 0) if last().next().is_none() => ("nothing heard yet".to_owned(), Tone::Faint),
        (0, 0) => ("nothing wrong".to_owned(), Tone::Good),
        (0, warnings) => (format!("{warnings} to look at"), Tone::Warning),
        (bad, 0) => (format!("{bad} BAD"), Tone::Bad),
        (bad, warnings) => (format!("{bad} BAD, {warnings} to look at"), Tone::Bad),
    };
    let right = match app.is_frozen() {
        true => Span::styled(" FROZEN: space ", theme.style(Tone::Chosen)),
        false => Span::raw(format!("every {} s", app.interval.as_secs_f64())),
    };
    let left = vec![
        Span::styled("ringloom top  ", theme.style(Tone::Title)),
        Span::styled(text, theme.style(tone)),
        Span::raw(format!("  {}  {}", several(exports, "export"), several(queues, "queue"))),
    ];
    // Which daemon, in what is left between them.
    let used: usize = left.iter().chain([&right]).map(Span::width).sum();
    let room = width.saturating_sub(used + 4);
    let which = match daemons {
        [one] => ctl::printable(&one.socket.display().to_string()),
        all => format!("{} daemons", all.len()),
    };
    let which = if room < 8 { String::new() } else { last_part(&which, room) };
    ends(left, vec![Span::raw(format!("{which}  ")), right], width)
}

/// `1 export`, `2 exports`.
fn several(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

/// The end of a text, which tells paths apart.
fn last_part(text: &str, width: usize) -> String {
    match text.chars().count().checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(more) => ['…'].into_iter().chain(text.chars().skip(more + 1)).collect(),
    }
}

/// The beginning of a text, and that it goes on.
fn first_part(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn sums(fleet: &Fleet) -> String {
    let queues = || fleet.all().iter().filter_map(|it| it.rates.as_ref()).flat_map(|it| &it.queues);
    let sum =
        |of: fn(&crate::rates::QueueRates) -> f64| queues().map(of).fold(0.0, |sum, it| sum + it);
    let open: u64 = queues().map(|it| it.in_flight).fold(0, u64::saturating_add);
    let mut text = format!(
        "{} IOPS   read {}/s   write {}/s   {open} open   {} errors/s",
        numbers::count(sum(|it| it.iops)),
        numbers::bytes(sum(|it| it.read_bytes)),
        numbers::bytes(sum(|it| it.written_bytes)),
        numbers::count(sum(|it| it.errors_per_s)),
    );
    let jobs: Vec<&Job> = all_jobs(fleet).collect();
    if let [one] = jobs.as_slice() {
        let part = numbers::percent(Some(crate::views::part_of(one)));
        text += &format!("   job {} {part}", ctl::printable(&one.id));
    } else if !jobs.is_empty() {
        text += &format!("   {} jobs", jobs.len());
    }
    text
}

fn all_jobs(fleet: &Fleet) -> impl Iterator<Item = &Job> {
    fleet.all().iter().filter_map(|it| it.last.as_ref()).flat_map(|it| &it.jobs)
}

fn views(fleet: &Fleet, app: &App, theme: Theme, width: usize) -> Line<'static> {
    let jobs = all_jobs(fleet).count();
    let mut left = Vec::new();
    for (number, view) in (1..).zip(View::ALL) {
        let count = match view {
            View::Jobs if jobs > 0 => format!(" ({jobs})"),
            View::Jobs | View::Exports | View::Queues | View::Iothreads | View::Placement => {
                String::new()
            }
        };
        let style = match view == app.view {
            true => theme.style(Tone::Chosen),
            false => Style::new(),
        };
        left.push(Span::styled(format!(" {number} {}{count} ", view.title()), style));
    }
    let mut chosen = Vec::new();
    if let Some(export) = &app.wanted.export {
        chosen.push(format!("of {}", ctl::printable(&export.name)));
    }
    if !app.wanted.filter.is_empty() {
        chosen.push(format!("/{}", ctl::printable(&app.wanted.filter)));
    }
    let reversed = if app.wanted.is_reversed { " ↑" } else { "" };
    chosen.push(format!("by {}{reversed}", app.wanted.sort.word()));
    let used: usize = left.iter().map(Span::width).sum();
    let chosen = first_part(&chosen.join("  "), width.saturating_sub(used + 1));
    ends(left, vec![Span::styled(chosen, theme.style(Tone::Faint))], width)
}

/// What is wrong, as many lines as there is room for; then what daemons do not say.
fn told(
    fleet: &Fleet,
    troubles: &[Trouble],
    (room, width): (usize, usize),
    theme: Theme,
) -> Vec<Line<'static>> {
    let line = |trouble: &Trouble| {
        let (mark, tone) = marked(Some(trouble.severity));
        let style = tone.map(|it| theme.style(it)).unwrap_or_default();
        let text = format!("{mark} {}: {}", trouble.subject(fleet), trouble.text);
        let text = ctl::printable(&text);
        Line::styled(padded(&text, Side::Left, text.chars().count().min(width)), style)
    };
    let shown = if troubles.len() > room { room - 1 } else { troubles.len() };
    let mut lines: Vec<Line<'static>> = troubles[..shown].iter().map(line).collect();
    if shown < troubles.len() {
        let text = format!("   and {} more", troubles.len() - shown);
        lines.push(Line::styled(text, theme.style(Tone::Warning)));
    }
    let silent: Vec<&str> = fleet
        .all()
        .iter()
        .filter(|it| !Daemon::tells_queues(it))
        .map(|it| it.label.as_str())
        .collect();
    if !silent.is_empty() {
        let text = format!(
            "{}: no query-ringloom-queues there, so exports and jobs without figures",
            silent.join(", ")
        );
        lines.push(Line::styled(ctl::printable(&text), theme.style(Tone::Faint)));
    }
    lines
}
