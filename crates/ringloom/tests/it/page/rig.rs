//! The rig itself: whether it sees what is wrong with a page, and leaves no process behind.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::browser::{Appearance, Browser, Fault, Medium, Paper, Screen, Scripts};
use testkit::report::skipped;

use super::{Desk, with_browser};

/// Nothing is wrong with it.
const GOOD: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>good</title>
    <meta name=viewport content='width=device-width, initial-scale=1'>
    <style>
      :root { color-scheme: light dark } body { color: #222; background: #fff }
      @media (prefers-color-scheme: dark) { body { color: #ddd; background: #111 } }
      @media print { #filter { display: none } .sheet { break-before: page } }
      .wide { overflow-x: auto } .wide div { width: 2000px }
    </style>
    <select id=filter><option value=all>all</option><option value=one>one</option></select>
    <p class=row>one</p><p class=row id=two>two</p>
    <details><summary>more</summary><p class=row style='width: 3000px; color: #eee'>three</p></details>
    <script>filter.onchange = () => { two.hidden = filter.value === 'one' }</script>
    <noscript><p>no scripts</p></noscript>";

fn elements(faults: &[Fault]) -> Vec<String> {
    faults.iter().map(|it| format!("{} {}", it.element, it.what)).collect()
}

/// The only fault is about this element, in these words.
#[track_caller]
fn check_fault(faults: &[Fault], element: &str, what: &str) {
    let found = elements(faults);
    let is_it = |it: &String| it.starts_with(element) && it.contains(what);
    assert!(!found.is_empty() && found.iter().all(is_it), "{element} {what}, found {found:?}");
}

#[test]
fn nothing_is_found_on_a_good_page_that_is_used() {
    with_browser(|desk| {
        let Desk { browser, .. } = desk;
        let path = desk.open(GOOD)?;
        let requests = browser.requests()?;
        ensure!(requests == [format!("file://{}", path.display())], "{requests:?}");
        for screen in [Screen::DESKTOP, Screen::PHONE, Screen::NARROW_PHONE] {
            browser.show_on(screen)?;
            let width = browser.value("document.documentElement.clientWidth")?;
            ensure!(width == json!(screen.width), "{width} of {screen:?}");
            ensure!(browser.misfits(Medium::Screen)?.is_empty(), "{screen:?}");
        }
        for (appearance, colour) in [
            (Appearance::DARK, "rgb(17, 17, 17)"),
            (Appearance::LIGHT, "rgb(255, 255, 255)"),
            (Appearance::PRINT, "rgb(255, 255, 255)"),
        ] {
            browser.appear(appearance)?;
            let found = browser.value("getComputedStyle(document.body).backgroundColor")?;
            ensure!(found == colour, "{found} in {appearance:?}");
            ensure!(
                browser.faint_texts()?.is_empty(),
                "{appearance:?}: {:?}",
                browser.faint_texts()?
            );
            let is_paper = appearance == Appearance::PRINT;
            ensure!(browser.find("#filter")?.is_displayed()? != is_paper, "{appearance:?}");
        }
        browser.appear(Appearance::LIGHT)?;
        ensure!(browser.count_displayed(".row")? == 2, "what is folded is not displayed");
        browser.find("#filter")?.select("one")?;
        ensure!(browser.count_displayed(".row")? == 1);
        ensure!(browser.find(".row")?.text()? == "one");
        ensure!(browser.find("#two")?.attribute("hidden")?.is_some());
        ensure!(browser.console()?.is_empty() && browser.requests()?.is_empty());
        Ok(())
    });
}

#[test]
fn scripts_of_the_page_do_not_run_where_they_are_off() {
    with_browser(|desk| {
        let Desk { browser, .. } = desk;
        browser.switch_scripts(Scripts::Off)?;
        desk.open(&format!("{GOOD}<script>document.title = 'ran'</script>"))?;
        ensure!(browser.value("document.title")? == "good");
        ensure!(browser.find("noscript")?.text()? == "no scripts");
        browser.switch_scripts(Scripts::On)?;
        desk.open(&format!("{GOOD}<script>document.title = 'ran'</script>"))?;
        ensure!(browser.value("document.title")? == "ran");
        Ok(())
    });
}

#[test]
fn every_complaint_and_request_of_a_bad_page_is_seen() {
    with_browser(|desk| {
        let Desk { browser, .. } = desk;
        for (script, complaint) in [
            ("console.error('bad')", "bad"),
            ("console.warn('odd')", "odd"),
            ("nothing.at.all", "ReferenceError"),
            ("Promise.reject(Error('late'))", "late"),
        ] {
            desk.open(&format!("{GOOD}<script>{script}</script>"))?;
            let complaints = browser.console()?;
            ensure!(
                complaints.iter().any(|it| it.is_complaint() && it.text.contains(complaint)),
                "{script}: {complaints:?}"
            );
        }
        for (element, url) in [
            ("<img src=http://ringloom.invalid/a.png>", "http://ringloom.invalid/a.png"),
            ("<link rel=stylesheet href=b.css>", "/b.css"),
            ("<style>p { background: url(c.svg) }</style>", "/c.svg"),
            ("<script>fetch('https://ringloom.invalid/d')</script>", "https://ringloom.invalid/d"),
            (
                "<script>new WebSocket('ws://ringloom.invalid/e')</script>",
                "ws://ringloom.invalid/e",
            ),
            ("<iframe src=f.html></iframe>", "/f.html"),
        ] {
            desk.open(&format!("{GOOD}{element}"))?;
            let requests = browser.requests()?;
            ensure!(requests.iter().any(|it| it.ends_with(url)), "{element}: {requests:?}");
        }
        Ok(())
    });
}

#[test]
fn what_does_not_fit_or_cannot_be_read_is_named() {
    with_browser(|desk| {
        let Desk { browser, .. } = desk;
        let wide = "<div class=wide><div>scroll</div></div>";
        for screen in [Screen::DESKTOP, Screen::PHONE] {
            browser.show_on(screen)?;
            desk.open(&format!("{GOOD}<p style='width: 1500px'>far</p>"))?;
            let found = browser.misfits(Medium::Screen)?;
            let names = elements(&found);
            ensure!(names.len() == 2 && names[0].starts_with("the page"), "{names:?}");
            check_fault(&found[1..], "p \"far\"", "reaches past");
            desk.open(&format!("{GOOD}{wide}"))?;
            ensure!(browser.misfits(Medium::Screen)?.is_empty(), "it can be scrolled: {screen:?}");
        }
        browser.appear(Appearance::PRINT)?;
        let names = elements(&browser.misfits(Medium::Print)?);
        ensure!(names.iter().any(|it| it.contains("would have to be scrolled")), "{names:?}");
        browser.appear(Appearance::LIGHT)?;
        let chart = "<svg width=100 height=50><text x=80 y=20>label</text></svg>";
        desk.open(&format!("{GOOD}{chart}"))?;
        check_fault(&browser.misfits(Medium::Screen)?, "text \"label\"", "cut off");
        let beside =
            |x: u32| format!("{GOOD}<svg><text y=20>one</text><text x={x} y=20>two</text></svg>");
        desk.open(&beside(20))?;
        check_fault(&browser.misfits(Medium::Screen)?, "text \"one\"", "touches text \"two\"");
        desk.open(&beside(60))?;
        ensure!(browser.misfits(Medium::Screen)?.is_empty(), "they lie apart");
        for (element, name) in [
            ("<p class=a style='color: #999'>pale", "p.a \"pale\""),
            ("<p class=a style='opacity: 0.4'>thin", "p.a \"thin\""),
            ("<p class=a style='background: rgb(0 0 0 / 0.7)'>dark", "p.a \"dark\""),
            (
                "<svg width=99 height=50><rect width=99 height=50 fill=#333 /><text y=20>low</text></svg>",
                "text \"low\"",
            ),
        ] {
            desk.open(&format!("{GOOD}{element}"))?;
            check_fault(&browser.faint_texts()?, name, " on ");
        }
        Ok(())
    });
}

#[test]
fn pictures_and_prints_have_their_size() {
    with_browser(|desk| {
        let Desk { browser, bench } = desk;
        browser.show_on(Screen { width: 300, height: 200, is_phone: false })?;
        desk.open(&format!("{GOOD}<div style='height: 1000px'></div>"))?;
        let file = bench.path("page.png");
        browser.picture(&file)?;
        let bytes = std::fs::read(&file).context("read the picture")?;
        // Width and height are the first of the header chunk (PNG specification, 11.2.2).
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        ensure!(bytes.starts_with(b"\x89PNG"), "no PNG");
        ensure!(number(16) == 300 && number(20) > 1000, "{} × {}", number(16), number(20));
        let one = browser.print(Paper::A4)?;
        ensure!(one.bytes.starts_with(b"%PDF"), "no PDF");
        desk.open(&format!("{GOOD}<p class=sheet>2</p><p class=sheet>3</p>"))?;
        let pages = browser.print(Paper::A4)?.pages();
        ensure!(pages == 3, "{pages} sheets: the rules for paper do not hold");
        Ok(())
    });
}

/// The processes that were told of this directory.
fn told_of(directory: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("list the processes")? {
        // One that has gone meanwhile was told of nothing.
        let Ok(line) = std::fs::read(entry?.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(directory) {
            found.push(line);
        }
    }
    Ok(found)
}

#[test]
fn a_browser_ends_with_its_owner_also_when_that_panics() {
    if let Some(reason) = Browser::missing() {
        skipped(&reason);
        return;
    }
    let mut profile = String::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let browser = Browser::start().expect("a browser starts");
        profile = browser.profile().display().to_string();
        assert!(!told_of(&profile).expect("processes are listed").is_empty(), "none was found");
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(told_of(&profile).expect("processes are listed"), [""; 0]);
    assert!(!std::path::Path::new(&profile).exists(), "{profile} is left");
}
