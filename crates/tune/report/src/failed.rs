//! The cells of which nothing was measured because all failed. Pure functions.
//!
//! Not here: the failures one by one (`around`).

use findings::summary::{CellSummary, FailedCell, FailedContender};
use plan::units::counted;

use super::Style;
use super::text::{listed, place, wrapped};

/// A section per cell that has no table.
pub(super) fn render(style: Style, failed: &[FailedCell], cells: &[CellSummary]) -> String {
    let has_table = |it: &&FailedCell| {
        cells.iter().any(|cell| (cell.variant, cell.cell) == (it.variant, it.cell))
    };
    failed.iter().filter(|it| !has_table(it)).map(|it| section(style, it)).collect()
}

fn section(style: Style, failed: &FailedCell) -> String {
    let title = place(failed.cell, &failed.variant);
    let lines: Vec<String> = failed.contenders.iter().map(line).collect();
    match style {
        Style::Plain => {
            let body = listed(style, &lines);
            let body: String = body.lines().map(|line| format!("  {line}\n")).collect();
            format!("\n{}  nothing was measured:\n{body}", wrapped(style, &title))
        }
        Style::Markdown => {
            let title = wrapped(style, &title);
            format!("\n## {title}\nNothing was measured:\n\n{}", listed(style, &lines))
        }
    }
}

fn line(failed: &FailedContender) -> String {
    let FailedContender { contender, count, error } = failed;
    format!("{contender}: {} failed: {error}", counted(*count, "run"))
}

#[cfg(test)]
mod tests {
    use findings::summary::{failed, summarise};
    use plan::testing::{cell, client};
    use records::results::Failure;
    use records::testing::run;

    use super::*;

    #[test]
    fn a_cell_of_which_all_failed_is_still_there() {
        let (reads, writes) = (cell("randread", 4096, 1, 1), cell("randwrite", 4096, 1, 1));
        let failure = |cell, repeat| {
            let error = anyhow::anyhow!("the disk is full");
            Failure::new(run(cell, client(1), repeat, 1).key, &error)
        };
        let failures = failed(&[failure(writes, 0), failure(writes, 1), failure(reads, 1)]);
        let cells = summarise(&[run(reads, client(1), 0, 5)], 4);
        assert_eq!(
            render(Style::Plain, &failures, &cells),
            "\nrandwrite 4k, 1 job × iodepth 1\n  nothing was measured:\n  client 1: 2 runs failed: \
             the disk is full\n"
        );
        assert_eq!(
            render(Style::Markdown, &failures, &cells),
            "\n## randwrite 4k, 1 job × iodepth 1\n\nNothing was measured:\n\n- client 1: 2 runs \
             failed: the disk is full\n"
        );
    }
}
