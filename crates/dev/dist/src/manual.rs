//! The manual pages: of the program, of `serve` and `check` from their help, of the other commands from what clap knows.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use options::HelpTopic;
use roff::{Roff, bold, roman};

use crate::help_page;

/// A page of section 1.
#[derive(Debug, Clone)]
pub struct ManualPage {
    /// Its name, as `ringloom-serve`.
    pub name: String,
    /// Its text for man(1).
    pub text: String,
}

/// All pages, of that day (`2026-11-27`).
pub fn pages(date: &str) -> Result<Vec<ManualPage>> {
    let mut pages = vec![program(date), serve(date), check(date)];
    for (_, command) in ringloom::commands::all() {
        let name = command.get_name().replace(' ', "-");
        of_clap(command, &name, date, &mut pages)?;
    }
    Ok(pages)
}

/// Writes all pages into a directory, each under its name.
pub fn write(directory: &Path, date: &str) -> Result<()> {
    for ManualPage { name, text } in pages(date)? {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

fn head(name: &str, what: &str, date: &str) -> Roff {
    let mut page = Roff::new();
    let version = format!("ringloom {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [name, "1", date, version.as_str(), "ringloom"]);
    page.control("ad", ["l"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {what}"))]);
    page
}

/// How a command is called, from the lines of its help that say it.
fn synopsis(page: &mut Roff, help: &str) {
    page.control("SH", ["SYNOPSIS"]);
    let lines = help.lines().take_while(|line| line.starts_with("Usage:") || line.starts_with(' '));
    for (index, line) in lines.enumerate() {
        if index > 0 {
            page.control("br", []);
        }
        page.text([bold(line.trim_start_matches("Usage:").trim())]);
    }
}

/// What follows the lines that say how a command is called.
fn after_usage(help: &str) -> String {
    let rest = help.lines().skip_while(|line| line.starts_with("Usage:") || line.starts_with(' '));
    rest.map(|line| format!("{line}\n")).collect()
}

fn see_also(page: &mut Roff, names: &[&str]) {
    page.control("SH", ["SEE ALSO"]);
    let all: Vec<String> = names.iter().map(|name| format!("{name}(1)")).collect();
    page.text([roman(all.join(", "))]);
    page.control("PP", []);
    page.text([roman("/usr/share/doc/ringloom has the documents that this page is short for.")]);
}

fn program(date: &str) -> ManualPage {
    let help = ringloom::arguments::help();
    let name = "ringloom";
    let mut page = head(name, "serves virtual disks over several threads", date);
    synopsis(&mut page, &help);
    page.control("SH", ["DESCRIPTION"]);
    help_page::set(&mut page, &help_page::parts(&widened(&after_usage(&help))));
    let others = ["serve", "check", "ctl", "top", "convert", "map", "tune", "report"];
    let others: Vec<String> = others.iter().map(|word| format!("ringloom-{word}")).collect();
    see_also(&mut page, &others.iter().map(String::as_str).collect::<Vec<_>>());
    ManualPage { name: name.to_owned(), text: help_page::text(&page) }
}

/// The help of the program has its descriptions further left than that of `serve`.
fn widened(help: &str) -> String {
    let line = |line: &str| match line.strip_prefix("  ") {
        Some(rest) if !rest.starts_with(' ') => match rest.split_once("  ") {
            Some((term, said)) => format!("  {term:<23}{}\n", said.trim_start()),
            None => match rest.split_once(' ').filter(|_| !rest.starts_with("ringloom ")) {
                Some((term, said)) => format!("  {term:<23}{said}\n"),
                None => format!("{line}\n"),
            },
        },
        _ => format!("{line}\n"),
    };
    help.replace("Start here:", "Examples:").lines().map(line).collect()
}

fn serve(date: &str) -> ManualPage {
    let help = options::help(HelpTopic::Serve);
    let name = "ringloom-serve";
    let mut page = head(name, "serves virtual disks over vhost-user-blk and NBD", date);
    synopsis(&mut page, &help);
    page.control("SH", ["DESCRIPTION"]);
    help_page::set(&mut page, &help_page::parts(&after_usage(&help)));
    see_also(&mut page, &["ringloom", "ringloom-check", "ringloom-ctl", "qemu-storage-daemon"]);
    ManualPage { name: name.to_owned(), text: help_page::text(&page) }
}

fn check(date: &str) -> ManualPage {
    let name = "ringloom-check";
    let mut page = head(name, "says what a line of ringloom serve would do", date);
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold("ringloom check"), roman(" [ARGUMENTS OF SERVE]")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "Says what ringloom serve would open, lock and refuse with the same arguments, without serving: images are looked \
         at, locks are tried and given back, no socket is made and nothing is written.",
    )]);
    page.control("SH", ["EXIT STATUS"]);
    page.text([roman("0 if a start would serve the line, 1 if it would fail.")]);
    see_also(&mut page, &["ringloom-serve"]);
    ManualPage { name: name.to_owned(), text: help_page::text(&page) }
}

/// A page for a command and for each below it.
fn of_clap(command: Command, name: &str, date: &str, pages: &mut Vec<ManualPage>) -> Result<()> {
    let command = command.disable_help_subcommand(true).version(env!("CARGO_PKG_VERSION"));
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    let words = name.replace('-', " ");
    let shown = command.bin_name(words).display_name(name.to_owned());
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(shown).title(name.to_owned()).manual("ringloom");
    let page = page.date(date).source(concat!("ringloom ", env!("CARGO_PKG_VERSION")));
    page.render(&mut text).context("write a page")?;
    let text = String::from_utf8(text).context("a page is text")?;
    pages.push(ManualPage { name: name.to_owned(), text: without_twice(&text) });
    for inner in below.into_iter().filter(|inner| !inner.is_hide_set()) {
        let name = format!("{name}-{}", inner.get_name());
        of_clap(inner, &name, date, pages)?;
    }
    Ok(())
}

/// The library breaks lines before and after empty ones, which do so themselves.
fn without_twice(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_gap = |index: Option<usize>| {
        index.and_then(|index| lines.get(index)).is_some_and(|line| line.is_empty())
    };
    let is_kept = |(index, line): &(usize, &&str)| {
        **line != ".br" || !is_gap(Some(index + 1)) && !is_gap(index.checked_sub(1))
    };
    let kept = lines.iter().enumerate().filter(is_kept);
    kept.map(|(_, line)| if line.is_empty() { ".sp\n".to_owned() } else { format!("{line}\n") })
        .collect()
}
