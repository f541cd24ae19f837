//! What is rendered of a published sweep.

use std::path::Path;

use super::*;

fn example(style: Style) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
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
