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
use crate::troubles::{Severity, Trouble};
use crate::views::Table;

/// In less than this nothing can be read.
pub(crate) const WIDTH_MIN: u16 = 60;
pub(crate) const HEIGHT_MIN: u16 = 10;

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
    let (footer, middle) = split_last(rows_from(area, top + below));
    let main = match area.height >= PANELS_FROM {
        true => panels::draw(frame, middle, app, (now, theme), (&troubles, table.rows.len())),
        false => middle,
    };
    draw_main(frame, main, app, &table, theme);
    draw_footer(frame, footer, app, theme);
}

/// The rows of an area from the one of that number on.
fn rows_from(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// The last row, and what is above it.
fn split_last(area: Rect) -> (Rect, Rect) {
    let height = area.height.saturating_sub(1);
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

fn draw_footer(frame: &mut Frame<'_>, area: Rect, app: &App, theme: Theme) {
    let line = if let Some(prompt) = &app.prompt {
        let choices = match prompt.choices.join(", ") {
            all if all.is_empty() => String::new(),
            all => format!("   ({all}; Tab goes through them)"),
        };
        Line::from(vec![
            Span::styled(prompt.label(), theme.style(Tone::Title)),
            Span::raw(prompt.text.clone()),
            Span::styled(" ", theme.style(Tone::Chosen)),
            Span::styled(choices, theme.style(Tone::Faint)),
        ])
    } else if let Some(message) = &app.message {
        let tone = if message.is_bad { Tone::Bad } else { Tone::Good };
        Line::styled(ctl::printable(&message.text), theme.style(tone))
    } else {
        keys_line(usize::from(area.width), theme)
    };
    write(frame, area, 0, &line);
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
