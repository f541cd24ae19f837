//! What is rendered of a published sweep, and of our own in its form.

use std::path::Path;

use super::*;
use crate::cell::tests::{cell, client};
use crate::contender::Contender;
use crate::results::tests::run;
use crate::summary::summarise;

fn example(style: Style) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sweep = PublishedSweep::read(&root.join("docs/examples/published-sweep")).unwrap().unwrap();
    render(style, "example", &sweep)
}

#[test]
fn the_published_sweep_is_rendered_in_its_form() {
    let text = example(Style::Plain);
    for part in [
        "  jobs × iodepth  1 × 1  1 × 4  1 × 16  4 × 1  4 × 4  4 × 16  16 × 1  16 × 4  16 × 16  all\n",
        "\n  2k randread ",
        "\n  1M total ",
        "\n  total ",
        "The best number of iothreads gains 0 to 543 % over none: 100 % on average,\n  57.5 % in half \
         of the 144 cells; 50 at least double, 21 gain nothing.",
        "No iothread is needed in 33 of 144 cells (23 %).",
        "So many iothreads are enough: 1 in 55 %, 4 in 78 %, 8 in 90 %, 12 in 99 %.",
        "The 48 cells with one job need at most 1.",
        "The 90 % rule holds in all 144 cells: n90 is 0 exactly where the best gains at\n  most 11.1 % \
         (here: up to 10 % there, 12 % and more elsewhere).",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let text = example(Style::Markdown);
    for part in [
        "# ringloom report\n\nexample: a published sweep\n",
        "\n| 2k randread | 18 | 31 |",
        "\n## What follows\n",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
}

#[test]
fn a_name_that_looks_like_html_is_no_html_in_markdown() {
    let sweep = PublishedSweep {
        gains: None,
        n90s: None,
        problems: vec!["improvement.csv: <b> is no number".to_owned()],
    };
    let name = "/d/<img src=x onerror=alert(1)>";
    let text = render(Style::Markdown, name, &sweep);
    assert!(!text.contains('<'), "{text}");
    for part in ["\n/d/&lt;img src=x ", "csv: &lt;b> is"] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    assert!(render(Style::Plain, name, &sweep).contains(name), "a terminal has no HTML");
}

#[test]
fn a_broken_rule_and_cells_without_a_partner_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let header = "size,op,jobs,iodepth,value\n";
    let write = |name: &str, lines: &str| {
        std::fs::write(directory.path().join(name), format!("{header}{lines}")).unwrap();
    };
    write("improvement.csv", "4096,read,1,1,50.5\n4096,read,1,4,5\n4096,read,4,4,5\n");
    write("min-iothreads.csv", "4096,read,1,1,0\n4096,read,1,4,2\n");
    let sweep = PublishedSweep::read(directory.path()).unwrap().unwrap();
    let text = render(Style::Markdown, "x", &sweep);
    for part in [
        "does not hold in 2 of 2 cells: read 4k jobs=1 iodepth=1 (+50.5 %, 0); read 4k",
        "Note: 1 cell in one of the two tables only.",
        "Totals are arithmetic means of what is not rounded.",
        "| 4k total | 51 | 5 | 5 | 20 |",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
}

#[test]
fn our_own_sweep_has_this_form_if_it_has_rows_and_columns() {
    let mut runs = Vec::new();
    for op in ["randread", "randwrite"] {
        for jobs in [1, 4] {
            let cell = cell(op, 4096, jobs, 16);
            for (who, iops) in [(Contender::Host, 4000), (client(0), 1000), (client(1), 1506)] {
                runs.push(run(cell, who, 0, iops));
            }
        }
    }
    let text = own(Style::Markdown, &summarise(&runs, 16));
    for part in [
        "\n## Gain over none, %: client\n\n| jobs × iodepth | 1 × 16 | 4 × 16 | all |\n",
        "\n| 4k randwrite | 51 | 51 | 51 |\n",
        "\n## n90: client\n",
        "\n## Ratio to the host, %: client\n",
        "\n| total | 38 | 38 | 38 |\n",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    assert_eq!(own(Style::Markdown, &summarise(&runs[..6], 16)), "", "one row");
}

#[test]
fn each_variant_has_its_tables_once_though_its_cells_lie_apart() {
    let mut runs = Vec::new();
    for (op, jobs) in [("read", 1), ("read", 4), ("write", 1), ("write", 4)] {
        for vms in [1, 2] {
            for (who, iops) in [(client(0), 1000), (client(1), 1506)] {
                let mut run = run(cell(op, 4096, jobs, 16), who, 0, iops);
                run.key.variant.vms = vms;
                runs.push(run);
            }
        }
    }
    let mut cells = summarise(&runs, 16);
    cells.sort_by_key(|cell| cell.cell.shape().jobs());
    let apart = cells.windows(2).filter(|pair| pair[0].variant != pair[1].variant).count();
    assert!(apart > 1, "the cells of a variant are neighbours");
    let text = own(Style::Markdown, &cells);
    assert_eq!(text.matches("## n90: client").count(), 2, "{text}");
}

/// Totals of n90 have a decimal, since those that differ by a half are not the same.
#[test]
fn markdown_and_page_write_the_same_totals() {
    let mut runs = Vec::new();
    for (jobs, op, none, one) in [
        (1, "read", 1000, 1005),
        (1, "write", 1000, 2505),
        (4, "read", 1000, 1505),
        (4, "write", 1000, 1025),
    ] {
        let cell = cell(op, 4096, jobs, 16);
        for (who, iops) in [(Contender::Host, 1999), (client(0), none), (client(1), one)] {
            runs.push(run(cell, who, 0, iops));
        }
    }
    let header = crate::results::tests::header("");
    let findings = crate::report::tests::findings(&header, &runs);
    let report = crate::report::Report::new(&findings);
    let files = report.files();
    let of = |name: &str| &files.iter().find(|(it, _)| it == name).unwrap().1;
    let (markdown, page) = (of("report.md"), of("report.html"));
    for kind in &KINDS {
        let section = markdown.split(&format!("## {}: client\n", kind.title)).nth(1).unwrap();
        let last = |line: &str| {
            line.trim_matches(['|', ' '])
                .split(" | ")
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let totals = section.lines().find(|line| line.starts_with("| total")).map(last).unwrap();
        let figure = page.split(&format!("<figcaption>{}<", kind.title)).nth(1).unwrap();
        let foot = figure.split("<tfoot>").nth(1).unwrap().split("</tfoot>").next().unwrap();
        let shown: Vec<_> = foot
            .split("</td>")
            .filter_map(|it| it.rsplit_once('>'))
            .map(|(_, it)| it.to_owned())
            .collect();
        assert_eq!(shown[..3], totals[..], "{}", kind.title);
    }
}
