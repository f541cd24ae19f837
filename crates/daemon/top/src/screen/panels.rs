//! What is below the table where a screen is high: iothreads, jobs, placement; beside each other where it is wide.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::theme::{Theme, Tone};
use super::{tables, write};
use crate::app::App;
use crate::troubles::Trouble;
use crate::views::{Table, View};

/// From this width on panels are beside each other.
const BESIDE_FROM: u16 = 160;

/// The rows that the table above keeps.
const MAIN_MIN: u16 = 12;

/// The rows of a panel, with its title and its head.
const PANEL_MAX: usize = 10;

/// Draws them at the bottom; gives what is left above. The table there has so many rows.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    app: &App,
    (now, theme): (Duration, Theme),
    (troubles, rows): (&[Trouble], usize),
) -> Rect {
    let tables: Vec<(View, Table)> = [View::Iothreads, View::Jobs, View::Placement]
        .into_iter()
        .filter(|view| *view != app.view)
        .map(|view| (view, app.table_with(view, now, troubles)))
        .filter(|(_, table)| !table.rows.is_empty())
        .collect();
    let wanted =
        |table: &Table| u16::try_from((table.rows.len() + 2).min(PANEL_MAX)).unwrap_or(u16::MAX);
    let needed = u16::try_from(rows + 2).unwrap_or(u16::MAX).max(MAIN_MIN);
    let room = area.height.saturating_sub(needed.min(area.height / 2));
    if area.width >= BESIDE_FROM {
        beside(frame, area, &tables, (room, theme), wanted)
    } else {
        above_each_other(frame, area, &tables, (room, theme), wanted)
    }
}

fn beside(
    frame: &mut Frame<'_>,
    area: Rect,
    tables: &[(View, Table)],
    (room, theme): (u16, Theme),
    wanted: impl Fn(&Table) -> u16,
) -> Rect {
    let height = tables.iter().map(|(_, it)| wanted(it)).max().unwrap_or(0).min(room);
    let count = u16::try_from(tables.len()).unwrap_or(1).max(1);
    let width = area.width / count;
    let bottom = Rect { y: area.bottom() - height, height, ..area };
    for (place, (view, table)) in (0..).zip(tables) {
        let panel = Rect { x: area.x + place * width, width: width - 1, ..bottom };
        panel_at(frame, panel, *view, table, theme);
    }
    Rect { height: area.height - height, ..area }
}

fn above_each_other(
    frame: &mut Frame<'_>,
    area: Rect,
    tables: &[(View, Table)],
    (room, theme): (u16, Theme),
    wanted: impl Fn(&Table) -> u16,
) -> Rect {
    let mut left = area;
    let mut room = room;
    for (view, table) in tables.iter().rev() {
        let height = wanted(table).min(room);
        // A title alone says nothing.
        if height < 3 {
            break;
        }
        room -= height;
        left.height -= height;
        let panel = Rect { y: left.bottom(), height, ..area };
        panel_at(frame, panel, *view, table, theme);
    }
    left
}

fn panel_at(frame: &mut Frame<'_>, area: Rect, view: View, table: &Table, theme: Theme) {
    let rule = "─".repeat(usize::from(area.width).saturating_sub(view.title().len() + 4));
    let title = Line::styled(format!("── {} {rule}", view.title()), theme.style(Tone::Faint));
    write(frame, area, 0, &title);
    tables::draw(frame, super::rows_from(area, 1), table, (None, 0), theme);
}
