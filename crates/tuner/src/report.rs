//! The report: what was measured how, the tables, what bends them, and what to use. Pure functions.
//!
//! Each child renders one part; `text` has the words and numbers of all.
//! The same text goes to standard output (`Style::Plain`) and to `report.md` (`Style::Markdown`).

mod advice;
mod around;
mod cells;
mod curve;
mod probe;
mod text;

use crate::cell::Cell;
use crate::results::{Failure, Header, Programs, Run};
use crate::summary::{curves, probes, summarise};
use crate::target::Origin;
use crate::units::counted;
use text::wrapped;

/// What every guest figure says where KVM does not work.
pub(crate) const EMULATED: &str = "emulated, not comparable with the host";

/// For whom the report is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Markdown,
}

/// All that a report is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Findings<'a> {
    pub(crate) header: &'a Header,
    pub(crate) runs: &'a [Run],
    /// Runs that failed and were not measured since.
    pub(crate) failures: &'a [Failure],
    /// Cells that write, where that is not allowed.
    pub(crate) skipped: &'a [Cell],
    /// What else was left out, a sentence without its full stop each.
    pub(crate) pruned: &'a [String],
    /// What bends the numbers, likewise.
    pub(crate) notes: &'a [String],
}

/// Renders what the runs say.
pub(crate) fn render(style: Style, findings: &Findings<'_>) -> String {
    let Findings { header, runs, .. } = *findings;
    let cells = summarise(runs, header.machine.cores);
    [
        head(style, header),
        cells::render(style, header, &cells),
        probe::render(style, &probes(runs, &header.settings.jobs)),
        curve::render(style, &curves(runs)),
        around::render(style, findings),
        advice::render(style, header, &cells),
    ]
    .concat()
}

fn head(style: Style, header: &Header) -> String {
    let Header { disk, machine, settings, .. } = header;
    let name = match disk.origin {
        Origin::Scratch => "a scratch file".to_owned(),
        Origin::User | Origin::Guest => disk.path.display().to_string(),
    };
    let title = format!("{name}: {}", disk.description);
    let machine =
        format!("{}, {}, {}", counted(machine.cores, "core"), machine.cpu, machine.kernel);
    let programs = programs(header);
    let method = format!(
        "{} of {} s after {} s of ramp, seed {}",
        counted(usize::from(settings.repeats), "repeat"),
        settings.runtime,
        settings.ramp,
        settings.seed
    );
    match style {
        Style::Plain => {
            [title, machine, programs, method].iter().map(|line| wrapped(style, line)).collect()
        }
        Style::Markdown => {
            format!(
                "# ringloom tune\n\n- Disk: {title}\n- Machine: {machine}\n- Programs: {programs}\n\
                 - Method: {method}\n"
            )
        }
    }
}

/// The programs that took part.
fn programs(header: &Header) -> String {
    let Programs { daemon, qemu, fio, guest_kernel, accelerator, .. } = &header.programs;
    let mut parts = vec![daemon.clone()];
    parts.extend(fio.as_ref().map(|version| format!("fio {version}")));
    parts.extend(qemu.as_ref().map(|version| format!("QEMU {version}")));
    parts.extend(guest_kernel.as_ref().map(|kernel| format!("guests with Linux {kernel}")));
    parts.extend(accelerator.as_ref().map(|accelerator| format!("run by {accelerator}")));
    parts.extend(header.given.as_ref().map(|given| format!("your guest {}", given.description())));
    parts.join(", ")
}

#[cfg(test)]
mod tests;
