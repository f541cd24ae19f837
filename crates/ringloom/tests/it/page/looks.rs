//! How the page looks: it fits on every screen and on paper, and can be read by day and by night.
//!
//! Pictures are left in the directory for temporary files of the tests, for people to look at.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::browser::{Appearance, Medium, Paper, Screen};
use testkit::results::{Mode, Plan, Results};

use super::{Desk, full, machine, none, usual, with_browser};

/// As wide as the paper between the margins of the page's own rule, 12 mm each.
const A4: Screen = Screen { width: 703, height: 1000, is_phone: false };

/// Where a picture of this name stays.
fn picture(name: &str) -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&directory).context("make a directory for pictures")?;
    Ok(directory.join(name))
}

pub(super) fn check_screens(desk: &Desk, name: &str) -> Result<()> {
    let screens = [
        ("desktop", Screen::DESKTOP),
        ("tablet", Screen { width: 768, height: 1024, is_phone: true }),
        ("phone", Screen::PHONE),
        ("narrow", Screen::NARROW_PHONE),
    ];
    for (screen_name, screen) in screens {
        desk.browser.show_on(screen)?;
        let width = desk.browser.value("document.documentElement.clientWidth")?;
        ensure!(width == screen.width, "{name}: the page is {width} wide on {screen:?}");
        none(&format!("{name}, {screen_name}"), &desk.browser.misfits(Medium::Screen)?)?;
        if screen_name != "narrow" {
            desk.browser.picture(&picture(&format!("{name}-{screen_name}.png"))?)?;
        }
    }
    desk.browser.show_on(Screen::DESKTOP)
}

pub(super) fn check_colours(desk: &Desk, name: &str) -> Result<()> {
    for (appearance, shade) in [(Appearance::DARK, "dark"), (Appearance::LIGHT, "light")] {
        desk.browser.appear(appearance)?;
        let background = desk.browser.value(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)
                .every(it => Number(it) < 128) ? 'dark' : 'light'",
        )?;
        ensure!(background == shade, "{name}: {background} where {shade} is preferred");
        none(&format!("{name}, {shade}"), &desk.browser.faint_texts()?)?;
    }
    desk.browser.appear(Appearance::DARK)?;
    desk.browser.picture(&picture(&format!("{name}-dark.png"))?)?;
    desk.browser.appear(Appearance::LIGHT)
}

pub(super) fn check_paper(
    desk: &Desk,
    name: &str,
    sheets: std::ops::RangeInclusive<usize>,
) -> Result<()> {
    // Also where night is preferred, paper is white.
    desk.browser.appear(Appearance { medium: Medium::Print, ..Appearance::DARK })?;
    desk.browser.show_on(A4)?;
    none(&format!("{name}, printed"), &desk.browser.misfits(Medium::Print)?)?;
    none(&format!("{name}, printed"), &desk.browser.faint_texts()?)?;
    for selector in ["#filter-op", "#filter-size", "#filter-subject", "button"] {
        ensure!(desk.browser.count_displayed(selector)? == 0, "{name}: {selector} is printed");
    }
    desk.browser.appear(Appearance::LIGHT)?;
    desk.browser.show_on(Screen::DESKTOP)?;
    let pdf = desk.browser.print(Paper::A4)?;
    std::fs::write(picture(&format!("{name}.pdf"))?, &pdf.bytes).context("write the print-out")?;
    ensure!(sheets.contains(&pdf.pages()), "{name}: {} sheets", pdf.pages());
    Ok(())
}

/// Every chart says to readers of screens what it shows.
pub(super) fn check_charts(desk: &Desk, name: &str) -> Result<()> {
    let nameless = desk.browser.value(
        "[...document.querySelectorAll('svg')].filter(it => it.checkVisibility()
            && it.getAttribute('aria-hidden') !== 'true'
            && !it.querySelector(':scope > title')?.textContent.trim()).length",
    )?;
    ensure!(nameless == 0, "{name}: {nameless} charts have no title");
    let charts = desk.browser.count_displayed("svg")?;
    ensure!(charts > 0, "{name}: no chart is shown");
    Ok(())
}

fn check_looks(name: &str, results: &Results, sheets: std::ops::RangeInclusive<usize>) {
    with_browser(|desk| {
        let page = desk.open_report(results)?;
        check_screens(desk, name)?;
        check_charts(desk, name)?;
        desk.unfold()?;
        check_all(desk, &format!("{name}-unfolded"), sheets)?;
        desk.check_quiet(&page)
    });
}

/// On all screens, in both colours and on paper.
pub(super) fn check_all(
    desk: &Desk,
    name: &str,
    sheets: std::ops::RangeInclusive<usize>,
) -> Result<()> {
    check_screens(desk, name)?;
    check_colours(desk, name)?;
    check_paper(desk, name, sheets)
}

#[test]
fn a_page_of_four_cells_fits_and_can_be_read() {
    check_looks("usual", &usual(), 2..=9);
}

/// More counts than labels have room for.
#[test]
fn a_page_of_33_numbers_of_iothreads_fits_and_can_be_read() {
    let plan = Plan {
        iothreads: (0..=32).collect(),
        operations: vec!["randread"],
        block_sizes: vec![4 << 10],
        ..Plan::usual()
    };
    check_looks("many", &Results::of(plan, machine), 1..=6);
}

/// Its cells have more charts' marks and rows than others; there are only more of them.
#[test]
fn a_page_of_a_full_sweep_fits_and_can_be_read() {
    with_browser(|desk| {
        let page = desk.open(full()?)?;
        check_screens(desk, "full")?;
        check_paper(desk, "full", 40..=180)?;
        desk.check_quiet(&page)
    });
}

#[test]
fn a_page_of_a_probe_fits_and_can_be_read() {
    let plan = Plan {
        mode: Mode::Hysteresis,
        jobs: vec![4, 48],
        iothreads: vec![0, 2],
        operations: vec!["randread"],
        block_sizes: vec![4 << 10],
        depths: vec![1],
        ..Plan::usual()
    };
    check_looks("probe", &Results::of(plan, machine), 1..=9);
}

#[test]
fn a_page_of_a_curve_fits_and_can_be_read() {
    let plan = Plan {
        mode: Mode::Curve,
        subjects: vec!["host", "vm:qemu", "vm:ringloom"],
        iothreads: vec![0, 4],
        block_sizes: vec![4 << 10],
        ..Plan::usual()
    };
    check_looks("curve", &Results::of(plan, machine), 1..=9);
}
