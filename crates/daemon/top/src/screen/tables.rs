//! A table on the screen: what fits, with pictures in what is left, and the chosen row.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::theme::{Theme, Tone};
use super::{marked, write};
use crate::numbers::sparkline;
use crate::views::{Fit, Picture, Row, Side, Table, padded};

/// The marks of what is wrong, before each row.
const MARKS: u16 = 3;

/// Draws its head, and the rows from `offset` on.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    table: &Table,
    (selected, offset): (Option<usize>, usize),
    theme: Theme,
) {
    let fit = table.fit(usize::from(area.width.saturating_sub(MARKS)));
    if table.rows.is_empty() {
        let line = Line::styled(format!("   {}", table.nothing), theme.style(Tone::Faint));
        return write(frame, area, 0, &line);
    }
    write(frame, area, 0, &head(table, &fit, theme));
    let rows = table.rows.iter().enumerate().skip(offset);
    for (line, (place, row)) in (1..area.height).zip(rows) {
        let is_chosen = selected == Some(place);
        write(frame, area, line, &body(table, &fit, row, (theme, is_chosen)));
    }
}

fn head(table: &Table, fit: &Fit, theme: Theme) -> Line<'static> {
    let mut text = " ".repeat(usize::from(MARKS));
    for (place, width) in &fit.columns {
        let column = table.columns[*place];
        text += &padded(column.title, column.side, *width);
        text += &" ".repeat(fit.gap);
    }
    if let (Some(title), Some(width)) = (table.picture, fit.picture) {
        text += &padded(title, Side::Left, width);
    }
    Line::styled(text, theme.style(Tone::Title))
}

fn body(table: &Table, fit: &Fit, row: &Row, (theme, is_chosen): (Theme, bool)) -> Line<'static> {
    let (mark, tone) = marked(row.severity);
    let told = tone.map(|it| theme.style(it));
    let plain = if row.is_idle { theme.style(Tone::Faint) } else { Style::new() };
    let mut spans = vec![Span::styled(format!("{mark} "), told.unwrap_or_default())];
    for (place, width) in &fit.columns {
        let column = table.columns[*place];
        let text = padded(&row.cells[*place], column.side, *width);
        // Names have the colour of what is wrong with them.
        let style = if column.side == Side::Name { told.unwrap_or(plain) } else { plain };
        spans.push(Span::styled(format!("{text}{:gap$}", "", gap = fit.gap), style));
    }
    if let (Some(picture), Some(width)) = (&row.picture, fit.picture) {
        spans.push(Span::styled(drawn(picture, width), theme.style(Tone::Picture)));
    }
    let line = Line::from(spans);
    if is_chosen { line.patch_style(theme.style(Tone::Chosen)) } else { line }
}

/// A picture, as characters.
fn drawn(picture: &Picture, width: usize) -> String {
    match picture {
        Picture::History(values) => sparkline(values.iter().copied(), width),
        Picture::Shares(work, look) => {
            let (work, both) = (reached(*work, width), reached(work + look, width));
            let look = both.saturating_sub(work);
            format!("{}{}", "█".repeat(work), "░".repeat(look))
        }
        Picture::Progress(part) => {
            let done = reached(*part, width);
            format!("{}{}", "█".repeat(done), "░".repeat(width - done))
        }
    }
}

/// How many of so many characters a share has.
fn reached(share: f64, width: usize) -> usize {
    let width_of = |place: usize| u32::try_from(place).map_or(f64::MAX, f64::from);
    (1..=width).filter(|place| share * width_of(width) + 0.5 >= width_of(*place)).count()
}
