//! What is rendered of our own sweep in the published form.

use findings::summary::summarise;
use plan::contender::Contender;
use plan::testing::{cell, client};
use records::testing::run;

use super::*;

#[test]
fn our_own_sweep_has_this_form_if_it_has_rows_and_columns() {
    let mut runs = Vec::new();
    for op in ["randread", "randwrite"] {
        for jobs in [1, 4] {
            let cell = cell(op, 4096, jobs, 16);
            for (who, iops) in [(Contender::HOST, 4000), (client(0), 1000), (client(1), 1506)] {
                runs.push(run(cell, who, 0, iops));
            }
        }
    }
    let text = render(Style::Markdown, &summarise(&runs, 16));
    for part in [
        "\n## Gain over none, %: client\n\n| jobs × iodepth | 1 × 16 | 4 × 16 | all |\n",
        "\n| 4k randwrite | 51 | 51 | 51 |\n",
        "\n## n90: client\n",
        "\n## Ratio to the host, %: client\n",
        "\n| total | 38 | 38 | 38 |\n",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    assert_eq!(render(Style::Markdown, &summarise(&runs[..6], 16)), "", "one row");
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
    let text = render(Style::Markdown, &cells);
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
        for (who, iops) in [(Contender::HOST, 1999), (client(0), none), (client(1), one)] {
            runs.push(run(cell, who, 0, iops));
        }
    }
    let header = records::testing::header("");
    let findings = crate::tests::findings(&header, &runs);
    let report = crate::Report::new(&findings);
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
