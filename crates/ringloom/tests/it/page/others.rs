//! The page of a comparison: it fits, can be read, and filters what it shows.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testkit::browser::{Screen, Scripts};
use testkit::process::Bench;
use testkit::results::{Figures, Outcome, Plan, Point, Results};

use super::filters::{press, said};
use super::looks::{check_all, check_charts};
use super::{Desk, machine, run, with_browser};

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

/// At the width at which a caption is a line longer than the other.
#[test]
fn the_rows_of_tables_side_by_side_line_up() {
    const TOPS: &str = "[...document.querySelector('.grids').querySelectorAll('table')]
        .map(it => Math.round(it.getBoundingClientRect().top))";
    with_browser(|desk| {
        Results::of(plan(), machine).write(&desk.bench.path("before"))?;
        run(&desk.bench, "report", "before --out own")?;
        desk.browser.open(&desk.bench.path("own/report.html"))?;
        desk.browser.show_on(Screen::DESKTOP)?;
        let tops = desk.browser.value(TOPS)?;
        let tops = tops.as_array().context("no list of tables")?;
        ensure!(tops.len() == 3 && tops[0] == tops[1], "the tables begin at {tops:?}");
        Ok(())
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
fn without_scripts_all_is_shown() {
    with_browser(|desk| {
        let pages = [comparison(&desk.bench, &plan())?];
        desk.browser.switch_scripts(Scripts::Off)?;
        for page in pages {
            desk.browser.open(&page)?;
            check_shown(desk, ".pairs tbody tr", 36)?;
            check_shown(desk, "button", 0)?;
        }
        Ok(())
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
