//! Manual pages: nothing is wrong with them, and each option is in them.

use std::process::Command;

use dist::manual;
use options::descriptions;
use testkit::report::skipped;

use super::has;

const DATE: &str = "2026-11-27";

#[test]
fn man_and_mandoc_find_nothing_wrong_with_any_page() {
    if !has("mandoc") || !has("man") {
        skipped("man and mandoc are needed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    manual::write(directory.path(), DATE).expect("pages");
    let pages = manual::pages(DATE).expect("pages");
    assert!(pages.len() > 10, "{}", pages.len());
    let mut lint = Command::new("mandoc");
    lint.args(["-Tlint", "-Wwarning"]);
    let mut man = Command::new("man");
    man.args(["--warnings", "-Tutf8", "-Z", "-l"]).env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "");
    for page in &pages {
        let path = directory.path().join(format!("{}.1", page.name));
        lint.arg(&path);
        man.arg(&path);
    }
    let found = lint.output().expect("mandoc runs");
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.status.success() && said.is_empty(), "{said}");
    let found = man.output().expect("man runs");
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(found.status.success() && said.is_empty(), "{said}");
}

#[test]
fn every_option_and_every_line_of_the_help_is_in_the_page_of_serve() {
    let pages = manual::pages(DATE).expect("pages");
    let page = pages.iter().find(|page| page.name == "ringloom-serve").expect("it is there");
    // As people read it: without what roff wants.
    let text = page.text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
    for option in descriptions() {
        assert!(text.contains(option.long), "{} is not in the page", option.long);
    }
    let words = |text: &str| {
        let text = text.replace("\\(aq", "'").replace("\\*(Aq", "'").replace("\\&", "");
        let text = text.replace("\\e", "\\").replace("\\\\", "\\");
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let page = words(&text);
    let help = options::help(options::HelpTopic::Serve);
    for line in help.lines().filter(|line| line.starts_with("                         ")) {
        let line = words(line);
        let is_there = page.windows(line.len()).any(|found| found == line);
        assert!(is_there, "{line:?} is not in the page");
    }
}

#[test]
fn each_command_has_a_page() {
    let pages = manual::pages(DATE).expect("pages");
    let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
    for word in ["serve", "check", "ctl", "ctl-backup", "convert", "map", "tune", "report"] {
        let name = format!("ringloom-{word}");
        assert!(names.contains(&name.as_str()), "{name} is not among {names:?}");
    }
    assert!(names.contains(&"ringloom"));
}
