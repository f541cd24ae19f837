//! The page as a file: nothing from outside, nothing that runs but its own script, whatever the results say.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::results::{Outcome, Plan, Results};

use super::{Desk, full, machine, run, usual, with_browser};

/// What a full sweep may have.
const BYTES_MAX: usize = 3_000_000;
/// How much of it a browser has to hold: what makes a page slow to open, and does not depend on the machine.
const ELEMENTS_MAX: u64 = 90_000;

/// Texts that would run if they were taken for markup, each with the mark that it would leave.
const HOSTILE: [&str; 6] = [
    "</title><script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "</style><img src=x onerror='window.ran = 3'>",
    "\"><svg onload=\"window.ran = 4\">",
    "' onmouseover='window.ran = 5' x='",
    "<!--<script>]]>javascript:window.ran=6",
];

#[test]
fn a_full_sweep_is_one_small_file_with_all_its_cells() {
    with_browser(|desk| {
        let text = full()?;
        ensure!(text.len() < BYTES_MAX, "{} bytes", text.len());
        let page = desk.open(text)?;
        let shown = desk.browser.count_displayed("section.cell")?;
        ensure!(shown == 144, "{shown} of 144 cells");
        let elements = desk.browser.value("document.querySelectorAll('*').length")?;
        let elements = elements.as_u64().context("a count")?;
        ensure!(elements < ELEMENTS_MAX, "{elements} elements");
        desk.check_quiet(&page)
    });
}

#[test]
fn the_page_of_a_real_run_shows_its_cells() {
    with_browser(|desk| {
        let line = "--subject host,client --iothreads none,1 --op randread,randwrite --bs 4k --size 16M \
                    --repeats 2 --runtime 0.2 --ramp 0.1 --seed 1";
        run(&desk.bench, "tune", line)?;
        let page = desk.bench.path("ringloom-report/report.html");
        desk.browser.open(&page)?;
        ensure!(desk.browser.count_displayed("section.cell")? == 2);
        let shown = desk.browser.find("body")?.text()?;
        for words in ["client", "host", "randread 4k", "randwrite 4k"] {
            ensure!(shown.contains(words), "{words:?} is missing in: {shown}");
        }
        desk.check_quiet(&page)
    });
}

/// Puts a hostile text behind every text of the header that is free.
fn poison(value: &mut Value, number: &mut usize) {
    match value {
        Value::String(text) => {
            text.push_str(HOSTILE[*number % HOSTILE.len()]);
            *number += 1;
        }
        Value::Array(list) => list.iter_mut().for_each(|it| poison(it, number)),
        Value::Object(fields) => fields.values_mut().for_each(|it| poison(it, number)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn hostile_texts_are_shown_and_do_not_run() {
    with_browser(|desk| {
        let error = HOSTILE.join(" ");
        let mut results = Results::of(Plan::usual(), |point| match point.iothreads {
            Some(4) => Outcome::Failed(error.clone()),
            _ => machine(point),
        });
        let mut number = 0;
        for name in ["programs", "machine", "environment"] {
            poison(&mut results.header[name], &mut number);
        }
        for name in ["path", "description"] {
            poison(&mut results.header["disk"][name], &mut number);
        }
        results.header["load_before"]["users"] =
            json!([{ "pid": 7, "comm": HOSTILE[0], "cpus": 20.0 }]);
        let page = desk.open_report(&results)?;
        let ran = desk.browser.value("window.ran === undefined")?;
        ensure!(ran == json!(true), "text {} ran", desk.browser.value("window.ran")?);
        let shown = desk.browser.value("document.documentElement.textContent")?;
        let shown = shown.as_str().context("a text")?;
        for text in HOSTILE {
            ensure!(shown.contains(text), "{text} is not shown");
        }
        let added = desk.browser.value(
            "document.querySelectorAll('img, iframe, object, embed, link, [onload], [onerror], [onmouseover]').length",
        )?;
        ensure!(added == 0, "{added} elements came from the results");
        desk.check_quiet(&page)
    });
}

/// Opens a page of odd results: nothing complains, and these words are shown.
fn check_shown(desk: &Desk, results: &Results, words: &str) -> Result<()> {
    let page = desk.open_report(results)?;
    let shown = desk.browser.find("body")?.text()?;
    ensure!(shown.contains(words), "{words:?} is missing in: {shown}");
    let odd: Vec<&str> = ["NaN", "inf", "undefined", "null"]
        .into_iter()
        .filter(|odd| shown.split(|it: char| !it.is_alphanumeric()).any(|word| word == *odd))
        .collect();
    ensure!(odd.is_empty(), "{odd:?} is shown: {shown}");
    desk.check_quiet(&page)?;
    // The next one must be made anew.
    std::fs::remove_file(&page).context("remove the page")
}

#[test]
fn odd_results_are_shown_in_words() {
    let mut zero = usual();
    for line in zero.lines.iter_mut().filter(|it| it["iothreads"] == "2") {
        line["operations"] = json!(0);
        line["bytes"] = json!(0);
        line["latency_ns"] = json!([]);
    }
    let failed = |_: &_| Outcome::Failed("the disk answered with an error".to_owned());
    let host = Plan { subjects: vec!["host"], ..Plan::usual() };
    let no_none = Plan { subjects: vec!["client"], iothreads: vec![2, 4], ..Plan::usual() };
    with_browser(|desk| {
        check_shown(desk, &zero, "client 2")?;
        let all_failed = Results::of(Plan::usual(), failed);
        check_shown(desk, &all_failed, "the disk answered with an error")?;
        check_shown(desk, &Results::new(Plan::usual()), "ringloom tune")?;
        check_shown(desk, &Results::of(host, machine), "host")?;
        check_shown(desk, &Results::of(no_none, machine), "client 4")
    });
}
