//! The pages of a comparison and of a published sweep: they fit, can be read, and filter what they show.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::browser::{Screen, Scripts};
use testkit::process::Bench;
use testkit::results::{Figures, Outcome, Plan, Point, Results};

use super::filters::{displayed, press, said};
use super::looks::{check_all, check_charts};
use super::{Desk, machine, run, with_browser};

/// Has ringloom make the page of the published sweep.
fn published(bench: &Bench) -> Result<PathBuf> {
    let examples =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/published-sweep");
    std::fs::create_dir_all(bench.path("sweep"))?;
    for name in ["improvement.csv", "min-iothreads.csv"] {
        std::fs::copy(examples.join(name), bench.path("sweep").join(name))?;
    }
    run(bench, "report", "sweep --out page")?;
    Ok(bench.path("page/report.html"))
}

/// The same machine after a change: four iothreads read faster, the host writes slower, all else is as it was.
fn changed(point: &Point) -> Outcome {
    let change = match (point.operation, point.iothreads) {
        ("randread", Some(4)) => 1.6,
        ("randwrite", None) => 0.7,
        _ => 1.0,
    };
    match machine(point) {
        Outcome::Measured(figures) => {
            Outcome::Measured(Figures { iops: figures.iops * change, ..figures })
        }
        other @ (Outcome::Failed(_) | Outcome::Missing) => other,
    }
}

/// Has ringloom make the page of two runs of this plan.
fn comparison(bench: &Bench, plan: &Plan) -> Result<PathBuf> {
    Results::of(plan.clone(), machine).write(&bench.path("before"))?;
    let mut after = Results::of(plan.clone(), changed);
    after.header["environment"]["kernel"]["release"] = "9.9.9".into();
    after.write(&bench.path("after"))?;
    run(bench, "report", "before after --out page")?;
    Ok(bench.path("page/report.html"))
}

fn plan() -> Plan {
    Plan { subjects: vec!["host", "client", "vm:qemu"], repeats: 6, ..Plan::usual() }
}

fn check_shown(desk: &Desk, selector: &str, count: usize) -> Result<()> {
    let shown = desk.browser.count_displayed(selector)?;
    ensure!(shown == count, "{shown} of {selector}, not {count}");
    Ok(())
}

#[test]
fn a_page_of_a_published_sweep_fits_and_can_be_read() {
    with_browser(|desk| {
        let page = published(&desk.bench)?;
        desk.browser.open(&page)?;
        check_charts(desk, "published")?;
        check_all(desk, "published", 1..=4)?;
        desk.check_quiet(&page)
    });
}

/// At the width at which a caption is a line longer than the other.
#[test]
fn the_rows_of_tables_side_by_side_line_up() {
    const TOPS: &str = "[...document.querySelectorAll('.grids table')]
        .map(it => Math.round(it.getBoundingClientRect().top))";
    with_browser(|desk| {
        let page = published(&desk.bench)?;
        desk.browser.open(&page)?;
        desk.browser.show_on(Screen::DESKTOP)?;
        let tops = desk.browser.value(TOPS)?;
        let tops = tops.as_array().context("no list of tables")?;
        ensure!(tops.len() == 2 && tops[0] == tops[1], "the tables begin at {tops:?}");
        Ok(())
    });
}

#[test]
fn the_tables_of_a_published_sweep_are_filtered() {
    with_browser(|desk| {
        let page = published(&desk.bench)?;
        desk.browser.open(&page)?;
        let text = desk.browser.find("body")?.text()?;
        for words in ["No iothread is needed in 33 of 144 cells", "+543 %", "The 90 % rule holds"] {
            ensure!(text.contains(words), "{words} is missing in {text}");
        }
        // Two tables of 16 rows, and a total for each of 4 sizes.
        check_shown(desk, ".grid tbody tr", 2 * 20)?;
        press(desk, "filter-op", "randread")?;
        check_shown(desk, ".grid tr[data-op]", 2 * 4)?;
        press(desk, "filter-size", "4k")?;
        check_shown(desk, ".grid tr[data-op]", 2)?;
        ensure!(displayed(desk, "op")? == ["randread"] && displayed(desk, "size")? == ["4k"]);
        check_shown(desk, "svg:not([aria-hidden])", 2)?;
        desk.check_quiet(&page)
    });
}

#[test]
fn a_page_of_two_runs_fits_and_can_be_read() {
    with_browser(|desk| {
        let page = comparison(&desk.bench, &plan())?;
        desk.browser.open(&page)?;
        check_charts(desk, "comparison")?;
        check_all(desk, "comparison", 2..=6)?;
        desk.check_quiet(&page)
    });
}

#[test]
fn the_rows_of_two_runs_are_filtered_and_noise_is_grey() {
    with_browser(|desk| {
        let page = comparison(&desk.bench, &plan())?;
        desk.browser.open(&page)?;
        let rows = ".pairs tbody tr";
        let all = desk.browser.count_displayed(rows)?;
        ensure!(said(desk)? == 4 && all == 4 * 9, "{all} rows");
        let slower = desk.browser.count_displayed("[data-verdict=slower]")?;
        let faster = desk.browser.count_displayed("[data-verdict=faster]")?;
        ensure!((faster, slower) == (4, 2), "{faster} faster, {slower} slower");
        let colours = |verdict: &str| {
            desk.browser.value(&format!(
                "getComputedStyle(document.querySelector('[data-verdict={verdict}] td')).color"
            ))
        };
        let muted =
            desk.browser.value("getComputedStyle(document.querySelector('.lead')).color")?;
        ensure!(colours("noise")? == muted && colours("faster")? != muted);
        for (group, value, cells, left) in [
            ("filter-subject", "host", 4, 4),
            ("filter-op", "randread", 2, 18),
            ("filter-size", "4k", 2, 18),
            ("filter-verdict", "faster", 2, 4),
            ("filter-verdict", "slower", 2, 2),
        ] {
            press(desk, group, value)?;
            ensure!(said(desk)? == cells, "{value}: says {}", said(desk)?);
            check_shown(desk, rows, left)?;
            press(desk, group, "")?;
        }
        // Each leaves rows, but none of them is in both.
        press(desk, "filter-subject", "host")?;
        press(desk, "filter-verdict", "faster")?;
        check_shown(desk, "section.cell", 0)?;
        ensure!(said(desk)? == 0, "says {}", said(desk)?);
        desk.check_quiet(&page)
    });
}

#[test]
fn without_scripts_both_show_all() {
    with_browser(|desk| {
        let pages = [comparison(&desk.bench, &plan())?];
        desk.browser.switch_scripts(Scripts::Off)?;
        for page in pages {
            desk.browser.open(&page)?;
            check_shown(desk, ".pairs tbody tr", 36)?;
            check_shown(desk, "button", 0)?;
        }
        desk.browser.open(&published(&desk.bench)?)?;
        check_shown(desk, ".grid tbody tr", 40)?;
        check_shown(desk, "button", 0)
    });
}

/// As many cells as a full sweep has, and as many rows as a sweep of three subjects.
#[test]
fn pages_of_full_sweeps_of_three_subjects_are_bounded() {
    with_browser(|desk| {
        let subjects = vec!["host", "client", "vm:qemu", "vm:ringloom"];
        let page = comparison(&desk.bench, &Plan { subjects, ..Plan::full() })?;
        run(&desk.bench, "report", "before --out own")?;
        let own = desk.bench.path("own/report.html");
        for (page, limit) in [(&page, 3_000_000), (&own, 3_500_000)] {
            let bytes = std::fs::metadata(page)?.len();
            ensure!(bytes < limit, "{}: {bytes} bytes", page.display());
        }
        desk.browser.open(&page)?;
        check_shown(desk, "section.cell", 144)?;
        desk.check_quiet(&page)
    });
}
