//! The lines of those that ran at once, below that of all together: one for each, or for each node of a cluster where there are many. Pure
//! functions.

use std::collections::BTreeMap;

use findings::summary::PartRow;

use super::COLUMNS;
use crate::text::{megabytes, microseconds, short};

/// More are not told one by one.
pub(super) const EACH_MAX: usize = 16;
/// What the lines of many mean.
pub(super) const LEGEND: &str = "Where more than 16 ran at once, those of a node have one line: the sum of their IOPS, the least and the most \
                                 that one of them had, and the highest p99.";

pub(super) fn lines(parts: &[PartRow]) -> Vec<Vec<String>> {
    if parts.len() <= EACH_MAX {
        return parts.iter().map(line).collect();
    }
    let mut nodes = BTreeMap::<Option<&str>, Vec<&PartRow>>::new();
    for part in parts {
        nodes.entry(part.node.as_deref()).or_default().push(part);
    }
    if nodes.len() > EACH_MAX {
        // They were on other nodes in each repeat, or there are too many nodes.
        nodes = [(None, parts.iter().collect())].into();
    }
    nodes.iter().map(|(node, parts)| together(*node, parts)).collect()
}

/// One of several: what is measured only for all of them together stays empty.
fn line(part: &PartRow) -> Vec<String> {
    let name = match &part.node {
        Some(node) => format!("  {} on {node}", part.vm),
        None => format!("  VM {}", part.vm),
    };
    cells([
        name,
        short(part.iops),
        String::new(),
        megabytes(part.bytes_per_second),
        String::new(),
        microseconds(part.p99),
    ])
}

fn together(node: Option<&str>, parts: &[&PartRow]) -> Vec<String> {
    let place = node.map_or_else(String::new, |node| format!(" on {node}"));
    let iops = || parts.iter().map(|it| it.iops);
    let (least, most) = (iops().fold(f64::INFINITY, f64::min), iops().fold(0.0, f64::max));
    cells([
        format!("  {} workers{place}", parts.len()),
        short(iops().sum()),
        format!("each {}–{}", short(least), short(most)),
        megabytes(parts.iter().map(|it| it.bytes_per_second).sum()),
        String::new(),
        microseconds(parts.iter().filter_map(|it| it.p99).max()),
    ])
}

fn cells(first: [String; 6]) -> Vec<String> {
    let mut cells = Vec::from(first);
    cells.resize(COLUMNS.len(), String::new());
    cells
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn part(vm: u16, node: &str) -> PartRow {
        PartRow {
            vm,
            iops: f64::from(vm) * 100.0,
            bytes_per_second: 1e6,
            p99: Some(Duration::from_micros(vm.into())),
            node: Some(node.to_owned()),
        }
    }

    #[test]
    fn many_have_a_line_for_each_node() {
        let few: Vec<_> = (1..=16).map(|vm| part(vm, "a")).collect();
        assert_eq!(lines(&few).len(), 16);
        assert_eq!(lines(&few)[1][..2], ["  2 on a", "200"]);
        let many: Vec<_> = (1..=20).map(|vm| part(vm, if vm <= 4 { "a" } else { "b" })).collect();
        let found = lines(&many);
        assert_eq!(found.len(), 2, "{found:?}");
        let expected = ["  4 workers on a", "1.00k", "each 100–400", "4.0", "", "4"];
        assert_eq!(found[0][..6], expected);
        assert_eq!(found[1][0], "  16 workers on b");
    }

    #[test]
    fn those_of_too_many_nodes_have_one_line() {
        let many: Vec<_> = (1..=20).map(|vm| part(vm, &format!("node{vm}"))).collect();
        let found = lines(&many);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0][..3], ["  20 workers", "21.0k", "each 100–2.00k"]);
    }
}
