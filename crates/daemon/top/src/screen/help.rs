//! The help: keys, and what the columns mean.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::theme::{Theme, Tone};
use super::write;
use crate::keys::{BINDINGS, Binding};

const MEANINGS: [&str; 7] = [
    "P50, P99    of the last interval: that many of a hundred requests took less",
    "OPEN        requests that are open now; DEPTH: on average",
    "WAIT        of their time, while the iothread serves other queues",
    "WORK, LOOK  of an iothread's time: looks for work; NO CPU: ready, without one",
    "MORE BRING  what another iothread would bring at most, by what is measured",
    "!! !        bad, to look at: told above all tables. Bytes are powers of 1024",
    "What a monitor does not allow (readonly=on) the daemon refuses, as is said then",
];

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    write(frame, area, 0, &Line::styled("ringloom top: keys", theme.style(Tone::Title)));
    let all: Vec<&Binding> = BINDINGS.iter().filter(|it| !it.shown.is_empty()).collect();
    let half = all.len().div_ceil(2);
    let width = usize::from(area.width / 2);
    for (row, place) in (1..).zip(0..half) {
        let mut spans = cells(all[place], width, theme);
        if let Some(right) = all.get(half + place) {
            spans.extend(cells(right, width, theme));
        }
        write(frame, area, row, &Line::from(spans));
    }
    let first = u16::try_from(half + 2).unwrap_or(0);
    for (row, meaning) in (first..).zip(MEANINGS) {
        write(frame, area, row, &Line::raw(meaning));
    }
    let last = area.height.saturating_sub(1);
    write(frame, area, last, &Line::styled("any key: back", theme.style(Tone::Faint)));
}

fn cells(binding: &Binding, width: usize, theme: Theme) -> Vec<Span<'static>> {
    let rest = width.saturating_sub(12);
    vec![
        Span::styled(format!("  {:<10}", binding.shown), theme.style(Tone::Title)),
        Span::raw(format!("{:<rest$}", binding.help)),
    ]
}
