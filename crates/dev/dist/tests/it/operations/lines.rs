//! The table of log lines in the runbook beside the code: each line of the table can be said, and each warning and error of the
//! daemon is in the table, or says by itself what there is to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::page::matches;

/// Where the daemon's code lies.
const PLACES: [&str; 5] = ["daemon", "fronts", "nodes", "path", "ringloom"];

/// The section of the page with the table.
const SECTION: &str = "## What the log says";

/// So many letters make a sentence; fewer only pass on what another one says.
const LETTERS_MIN: usize = 4;

/// What needs no word beside itself: it says what has happened, and there is nothing to do.
const CLEAR: &[&str] = &[
    "SIGHUP: …; the log goes on in the file that was open. The sandbox lets a log file be made anew in a directory that holds nothing but files named *.log*",
    "an image of a Ceph cluster was not closed in order: …",
    "block job '…': …; what it has put on its source stays until a restart",
    "block job '…': cancelled, because the daemon ends",
    "block job '…': its filter stays: …",
    "block job '…': node '…' stays: …",
    "cannot measure files: …",
    "cannot give back a lock: …",
    "closing the image, of which some clusters leak: …",
    "config …: …, and so decide what is served",
    "disk …: client … has the lock and is gone; it is blocklisted, and its lock broken",
    "export …: does not show bitmap '…' any more: …",
    "export …: queue … stays: …",
    "export …: served by others: …",
    "monitor …: …",
    "monitor …: its client does not read; … events were left out",
    "node '…' stays writable: …",
    "node …: snapshot '…' cannot be taken back: …",
    "node …: snapshot '…' is gone all the same",
    "node … cannot be taken back: …",
    "pidfile …: cannot remove it: …",
    "pool …: …",
    "secret …: is not kept for a restart; one in a file is",
    "some clusters of the image leak: …",
    "space that no snapshot uses any more is not given back (…)",
    "this host has no journal and no syslog: what the daemon says once it is in the background is lost; see --log-file",
    "… (and … more that were not logged)",
    "…: … (and … more that were not logged)",
    "… cannot be removed again: …",
    "…: … more sentences were not logged",
    "…: cannot remove it: …",
    "… means nothing to this process: SIGTERM ends it",
    "… more failed requests were not logged",
    "no timer, so waits end up to a millisecond late: …",
    "io_uring takes no registered files, so descriptors are used: …",
    "socket …: another process keeps its directory locked",
    "socket …: cannot find its directory: …",
    "socket …: cannot listen again: …",
    "socket …: cannot remove it: …",
    "the service manager cannot be told …: …",
    "the service manager cannot be told anything: …",
    "cannot tell the service manager that the daemon is alive: …",
    "the end of process … is not seen: …",
    "process … still runs … s after it left",
    "what failed could not be taken back: …",
];

/// A text of the code with `…` for what is put in.
fn with_ellipses(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        let doubled = tail.starts_with("{{") || tail.starts_with("}}");
        let end = if doubled { 2 } else { tail.find('}').map_or(tail.len(), |end| end + 1) };
        out.push_str(if doubled { &tail[..1] } else { "…" });
        rest = &tail[end..];
    }
    out + rest
}

/// The literal that begins here, behind its quotation mark, as the program has it, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let (mut out, mut all) = (String::new(), text.char_indices());
    while let Some((at, letter)) = all.next() {
        match letter {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match all.next()?.1 {
                '\n' => {
                    let rest = all.as_str();
                    let blanks = rest.len() - rest.trim_start().len();
                    for _ in 0..rest[..blanks].chars().count() {
                        all.next();
                    }
                }
                'n' => out.push('\n'),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
    None
}

/// The files of the daemon's crates without their tests.
fn sources() -> Result<Vec<String>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts = Vec::new();
    let mut left: Vec<PathBuf> = PLACES.iter().map(|place| crates.join(place)).collect();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).with_context(|| format!("{}", directory.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                left.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = fs::read_to_string(&path)?;
                let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                // Comments have quotation marks of their own.
                let code = own.lines().filter(|line| !line.trim_start().starts_with("//"));
                texts.push(code.collect::<Vec<_>>().join("\n"));
            }
        }
    }
    Ok(texts)
}

/// All that can be put together to a line: the clauses of all literals.
fn clauses(sources: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in sources {
        let mut rest = text.as_str();
        while let Some(at) = rest.find('"') {
            let Some((text, tail)) = literal(&rest[at + 1..]) else { break };
            let text = with_ellipses(&text);
            found.extend(split(&text).filter(|clause| says(clause)).map(str::to_owned));
            rest = tail;
        }
    }
    found
}

/// The clauses of a line.
fn split(line: &str) -> impl Iterator<Item = &str> {
    line.split(": ").flat_map(|part| part.split("; "))
}

/// The warnings and errors of the code.
fn logged(sources: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in sources {
        for call in ["warn!(", "error!("] {
            for (at, _) in text.match_indices(call) {
                let inside = text[at + call.len()..].trim_start();
                let literal = inside.strip_prefix('"').and_then(literal);
                found.extend(literal.map(|(text, _)| with_ellipses(&text)));
            }
        }
    }
    found.retain(|line| says(line));
    found
}

/// Whether it says something itself.
fn says(text: &str) -> bool {
    text.chars().filter(|letter| letter.is_alphabetic()).count() >= LETTERS_MIN
}

/// The lines of the table: what is quoted in the first column.
fn told(page: &str) -> Result<Vec<String>> {
    let section = page.split_once(SECTION).context("the section is missing")?.1;
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let lines = rows.flat_map(|row| {
        let cell = row.split(" | ").next().unwrap_or_default().trim_end_matches('`');
        cell.split("`<br>`").map(str::to_owned).collect::<Vec<_>>()
    });
    let lines: Vec<String> = lines.collect();
    ensure!(lines.len() > 20, "{lines:?}");
    Ok(lines)
}

/// Whether the code says a clause of a line.
fn is_said(clause: &str, clauses: &BTreeSet<String>) -> bool {
    !says(clause) || clauses.iter().any(|pattern| matches(pattern, clause))
}

fn agree() -> Result<()> {
    let sources = sources()?;
    let (clauses, logged, told) = (clauses(&sources), logged(&sources), told(&super::text()?)?);
    ensure!(logged.len() > 50, "the code says little: {logged:?}");
    let mut wrong = Vec::new();
    for line in &told {
        let lost = split(line).filter(|clause| !is_said(clause, &clauses));
        wrong.extend(lost.map(|clause| format!("nobody says {clause:?} of {line:?}")));
    }
    let is_told = |pattern: &&String| {
        CLEAR.contains(&pattern.as_str()) || told.iter().any(|line| matches(pattern, line))
    };
    wrong.extend(logged.iter().filter(|it| !is_told(it)).map(|it| format!("not told: {it:?}")));
    let gone = CLEAR.iter().filter(|line| !logged.contains(**line));
    wrong.extend(gone.map(|line| format!("nobody logs {line:?} any more")));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn the_table_of_log_lines_is_what_the_daemon_says() {
    if let Err(error) = agree() {
        panic!("{error:#}");
    }
}

#[test]
fn lines_are_read_from_code() {
    let code = "tracing::warn!(\n    \"disk {name}: {} of {{x}} \\\n     is gone\", 1);\nsay(\"it rains\");".to_owned();
    let sources = [code];
    assert_eq!(logged(&sources), ["disk …: … of {x} is gone".to_owned()].into());
    let clauses = clauses(&sources);
    assert!(is_said("it rains", &clauses) && is_said("2 of {x} is gone", &clauses));
    assert!(!is_said("it snows", &clauses));
}
