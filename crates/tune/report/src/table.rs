//! A table of text, rendered for a terminal or as Markdown. Pure functions.
//!
//! Invariants: every row has as many cells as the header; the first column is aligned to the left,
//! all others to the right.

use crate::markdown::escaped;

/// Header and rows.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    pub(crate) fn of(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let mut table = Self::new(header);
        rows.into_iter().for_each(|row| table.push(row));
        table
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.header.len(), "a row has as many cells as the header");
        self.rows.push(row);
    }

    /// The same without the columns of these names; not the first one.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let kept = |row: &Vec<String>| {
            let cells = self.header.iter().zip(row);
            let kept = cells.filter(|(name, _)| !names.contains(&name.as_str()));
            kept.map(|(_, cell)| cell.clone()).collect()
        };
        Self { header: kept(&self.header), rows: self.rows.iter().map(kept).collect() }
    }

    /// Characters in the longest line of `plain`.
    pub(crate) fn width(&self) -> usize {
        let longest = self.plain().lines().map(|line| line.chars().count()).max();
        longest.unwrap_or_default()
    }

    /// Columns two spaces apart, indented by two.
    pub(crate) fn plain(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let cells: Vec<_> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| pad(cell, width, column))
                .collect();
            text.push_str("  ");
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let alignment = |column| if column == 0 { ":---" } else { "---:" };
        let rule: Vec<_> = (0..self.header.len()).map(|c| alignment(c).to_owned()).collect();
        let mut text = format!("{}| {} |\n", line(&self.header), rule.join(" | "));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.header.len()];
        for row in std::iter::once(&self.header).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

fn pad(cell: &str, width: usize, column: usize) -> String {
    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["who", "µs"]);
        table.push(vec!["none *".to_owned(), "7".to_owned()]);
        table.push(vec!["2".to_owned(), "1,234".to_owned()]);
        table
    }

    #[test]
    fn a_cell_of_markdown_ends_no_cell() {
        let mut table = Table::new(&["a|b", "c"]);
        table.push(vec!["d | e".to_owned(), "[f](g)".to_owned()]);
        let expected = "| a\\|b | c |\n| :--- | ---: |\n| d \\| e | \\[f\\](g) |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn plain_columns_are_aligned() {
        assert_eq!(table().plain(), "  who        µs\n  none *      7\n  2       1,234\n");
    }

    #[test]
    fn columns_can_be_left_out() {
        let fewer = table().without(&["µs"]);
        assert_eq!(fewer.plain(), "  who\n  none *\n  2\n");
        assert_eq!((table().width(), fewer.width()), (15, 8));
    }

    #[test]
    fn markdown_is_a_table() {
        let expected = "| who | µs |\n| :--- | ---: |\n| none \\* | 7 |\n| 2 | 1,234 |\n";
        assert_eq!(table().markdown(), expected);
    }
}
