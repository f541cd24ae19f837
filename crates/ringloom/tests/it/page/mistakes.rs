//! Pages with a mistake put in: each check of the other children finds the one that it is there for.

use anyhow::{Result, bail, ensure};
use testkit::browser::{Appearance, Screen};

use super::filters::check_value;
use super::looks::{check_charts, check_colours, check_paper, check_screens};
use super::{Desk, make_report, usual, with_browser};

/// A check, what it must say, and what is added to the page for it.
type Mistake = (fn(&Desk) -> Result<()>, &'static str, &'static str);

const MISTAKES: [Mistake; 10] = [
    (filter, "filter-op randread", "<style>section.cell.off { display: block !important }</style>"),
    (filter, "filter-op randread", "<style>tr.off { display: table-row !important }</style>"),
    (screens, "reaches past the page", "<style>section.cell h3 { width: 800px }</style>"),
    (screens, "wide on Screen", "<meta name=viewport content='width=980'>"),
    (charts, "have no title", "<script>document.querySelector('svg > title').remove()</script>"),
    (screens, "touches", "<style>.x text { letter-spacing: 1.5em }</style>"),
    (colours, " on ", "<style>section.cell h3 { color: #888 !important }</style>"),
    (colours, "dark is preferred", "<style>body { background: #fff !important }</style>"),
    (
        paper,
        "is printed",
        "<style>@media print { nav { display: block !important; margin: 0 !important } }</style>",
    ),
    (
        paper,
        "would have to be scrolled",
        "<style>section.cell .scroll { width: 90px; overflow: auto !important }</style>",
    ),
];

fn filter(desk: &Desk) -> Result<()> {
    check_value(desk, "filter-op", "op", "randread", 2)
}

fn screens(desk: &Desk) -> Result<()> {
    check_screens(desk, "mistake")
}

fn charts(desk: &Desk) -> Result<()> {
    check_charts(desk, "mistake")
}

fn colours(desk: &Desk) -> Result<()> {
    check_colours(desk, "mistake")
}

fn paper(desk: &Desk) -> Result<()> {
    check_paper(desk, "mistake", 1..=20)
}

#[test]
fn every_check_finds_its_mistake() {
    with_browser(|desk| {
        let page = std::fs::read_to_string(make_report(&desk.bench, &usual())?)?;
        for (check, words, mistake) in MISTAKES {
            // A check that ends early leaves the browser as it was then.
            desk.browser.show_on(Screen::DESKTOP)?;
            desk.browser.appear(Appearance::LIGHT)?;
            desk.open(&page.replace("</body>", &format!("{mistake}</body>")))?;
            desk.unfold()?;
            match check(desk) {
                Ok(()) => bail!("not found: {mistake}"),
                Err(error) => {
                    let said = format!("{error:#}");
                    ensure!(said.contains(words), "{mistake}: {said}");
                }
            }
        }
        for mistake in ["<script>console.warn('odd')</script>", "<img src=a.png alt=a>"] {
            let path = desk.open(&page.replace("</body>", &format!("{mistake}</body>")))?;
            ensure!(desk.check_quiet(&path).is_err(), "not found: {mistake}");
        }
        let path = desk.open(&page)?;
        desk.check_quiet(&path)
    });
}
