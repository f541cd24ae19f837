//! Draws what the `app` shows: what is wrong first, then the sums, the table of the view, and what else there is room for.
//!
//! Invariants: everything fits into [`WIDTH_MIN`] × [`HEIGHT_MIN`]; in less it is said that there is no room. Nothing is told by a
//! colour alone.

mod ascii;
mod header;
mod help;
mod panels;
mod tables;
mod theme;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};

pub(crate) use self::theme::Theme;
use self::theme::{Letters, Tone};
use crate::app::App;
use crate::prompt::Prompt;
use crate::troubles::{Severity, Trouble};
use crate::views::Table;

/// In less than this nothing can be read.
pub(crate) const WIDTH_MIN: u16 = 60;
pub(crate) const HEIGHT_MIN: u16 = 10;

/// The most rows that a question, or what became of it, takes.
const FOOTER_MAX: usize = 3;

/// From this height on there are panels below the table.
const PANELS_FROM: u16 = 36;

/// Draws all of it, in letters that the terminal knows.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App, now: Duration, theme: Theme) {
    draw_all(frame, app, now, theme);
    match theme.letters {
        Letters::Utf8 => {}
        Letters::Ascii => ascii::replace(frame.buffer_mut()),
    }
}

fn draw_all(frame: &mut Frame<'_>, app: &mut App, now: Duration, theme: Theme) {
    let area = frame.area();
    frame.render_widget(Clear, area);
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!(
            "ringloom top needs {WIDTH_MIN} × {HEIGHT_MIN} characters; here are {} × {}. q leaves",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    if app.is_help {
        return help::draw(frame, area, theme);
    }
    let troubles = app.troubles(now);
    let table = app.table_with(app.view, now, &troubles);
    let (top, below) = header::draw(frame, area, app, &troubles, (now, theme));
    let said = footer(usize::from(area.width), app, theme);
    let rows = u16::try_from(said.len()).unwrap_or(1);
    let (footer, middle) = split_last(rows_from(area, top + below), rows);
    let main = match area.height >= PANELS_FROM {
        true => panels::draw(frame, middle, app, (now, theme), (&troubles, table.rows.len())),
        false => middle,
    };
    draw_main(frame, main, app, &table, theme);
    for (row, line) in (0..).zip(&said) {
        write(frame, footer, row, line);
    }
}

/// The rows of an area from the one of that number on.
fn rows_from(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// The last rows, and what is above them.
fn split_last(area: Rect, rows: u16) -> (Rect, Rect) {
    let height = area.height.saturating_sub(rows);
    (rows_from(area, height), Rect { height, ..area })
}

/// Writes a line into a row, if it is there.
fn write(frame: &mut Frame<'_>, area: Rect, row: u16, line: &Line<'_>) {
    if row < area.height {
        frame.buffer_mut().set_line(area.x, area.y + row, line, area.width);
    }
}

fn draw_main(frame: &mut Frame<'_>, area: Rect, app: &mut App, table: &Table, theme: Theme) {
    app.page = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = app.follow(table);
    if app.fleet.all().is_empty() {
        let text = format!("{}; they are looked for every 2 s", app.nothing);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    tables::draw(frame, area, table, (selected, app.offset), theme);
}

/// What is asked, or was done, in as many rows as it needs; else keys.
fn footer(width: usize, app: &App, theme: Theme) -> Vec<Line<'static>> {
    if let Some(prompt) = &app.prompt {
        return prompted(width, prompt, theme);
    }
    let Some(message) = &app.message else { return vec![keys_line(width, theme)] };
    let tone = if message.is_bad { Tone::Bad } else { Tone::Good };
    let line = |text| Line::styled(text, theme.style(tone));
    wrapped(&ctl::printable(&message.text), width).into_iter().map(line).collect()
}

/// A question with what was typed so far, and what can be said.
fn prompted(width: usize, prompt: &Prompt, theme: Theme) -> Vec<Line<'static>> {
    let choices = match prompt.choices.join(", ") {
        all if all.is_empty() => String::new(),
        all => format!("   ({all}; Tab goes through them)"),
    };
    let mut lines = Vec::new();
    let mut spans = vec![
        Span::styled(prompt.label(), theme.style(Tone::Title)),
        Span::raw(prompt.text.clone()),
        Span::styled(" ", theme.style(Tone::Chosen)),
    ];
    let used = |spans: &[Span<'_>]| -> usize { spans.iter().map(Span::width).sum() };
    if used(&spans) > width {
        let asked = wrapped(&prompt.label(), width).into_iter();
        lines.extend(asked.map(|text| Line::styled(text, theme.style(Tone::Title))));
        spans.remove(0);
    }
    let faint = |text: String| Span::styled(text, theme.style(Tone::Faint));
    if used(&spans) + choices.chars().count() <= width {
        spans.push(faint(choices));
        lines.push(Line::from(spans));
    } else {
        lines.push(Line::from(spans));
        lines.extend(wrapped(choices.trim_start(), width).into_iter().map(faint).map(Line::from));
    }
    lines.truncate(FOOTER_MAX);
    lines
}

/// A text in rows, broken at blanks where that is possible; what needs more than [`FOOTER_MAX`] ends with dots.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut left: Vec<char> =
        text.trim().chars().map(|it| if it == '\n' { ' ' } else { it }).collect();
    while left.len() > width && rows.len() + 1 < FOOTER_MAX {
        let blank = left[..=width].iter().rposition(|it| *it == ' ').filter(|place| *place > 0);
        let rest = left.split_off(blank.unwrap_or(width));
        rows.push(left.into_iter().collect());
        left = rest.into_iter().skip_while(|it| *it == ' ').collect();
    }
    if left.len() > width {
        left.truncate(width.saturating_sub(1));
        left.push('…');
    }
    rows.push(left.into_iter().collect());
    rows
}

/// The most important keys, as many as there is room for.
fn keys_line(width: usize, theme: Theme) -> Line<'static> {
    const KEYS: [(&str, &str); 10] = [
        ("q", "leave"),
        ("?", "help"),
        ("Tab", "view"),
        ("Enter", "queues"),
        ("/", "filter"),
        ("s", "sort"),
        ("space", "freeze"),
        ("m", "move"),
        ("p", "pin"),
        ("+ -", "interval"),
    ];
    let mut spans = Vec::new();
    let mut left = width;
    for (key, does) in KEYS {
        let needed = key.len() + does.len() + 3;
        if needed > left {
            break;
        }
        left -= needed;
        spans.push(Span::styled(key, theme.style(Tone::Title)));
        spans.push(Span::raw(format!(" {does}  ")));
    }
    Line::from(spans)
}

/// How bad something is, as a mark and a colour.
fn marked(severity: Option<Severity>) -> (&'static str, Option<Tone>) {
    match severity {
        Some(Severity::Bad) => ("!!", Some(Tone::Bad)),
        Some(Severity::Warning) => ("! ", Some(Tone::Warning)),
        None => ("  ", None),
    }
}

/// How many are how bad.
fn counted(troubles: &[Trouble]) -> (usize, usize) {
    let bad = troubles.iter().filter(|it| it.severity == Severity::Bad).count();
    (bad, troubles.len() - bad)
}

#[cfg(test)]
mod tests;
