//! Decides whether it is drawn or printed.

use anyhow::{Result, ensure};

use crate::arguments::TopArgs;
use crate::sources::Sources;
use crate::views::Wanted;
use crate::{batch, live, terminal};

/// How it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it decides the exit code"]
pub enum TopEnd {
    /// As it was asked to.
    Done,
    /// Something was printed, but not of all daemons, as stderr says.
    Incomplete,
}

/// Shows what daemons do, until a person has seen enough or all intervals are printed.
///
/// # Errors
/// If no daemon is named or found, or if there is no terminal to draw on and nothing else is asked for.
pub fn run(arguments: &TopArgs) -> Result<TopEnd> {
    let sources = Sources::of(arguments)?;
    let wanted = Wanted {
        sort: arguments.sort,
        is_reversed: false,
        filter: arguments.filter.clone(),
        export: None,
    };
    if let Some(count) = arguments.batch() {
        return batch::run(arguments, &sources, &wanted, count);
    }
    ensure!(
        terminal::is_there(),
        ctl::wrong(
            "standard output is no terminal that can be drawn on: say --once, --count N or --json"
        )
    );
    live::run(arguments, sources, wanted)?;
    Ok(TopEnd::Done)
}
