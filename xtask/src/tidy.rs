//! `cargo xtask tidy`: the rules of this project that no other tool checks.
//!
//! Reads the files of the repository and `cargo metadata` once, asks every rule, prints all
//! problems. The rules themselves are pure functions in the modules below.
//! Not here: formatting, lints, links in the documentation (`check`).

mod documents;
mod edges;
mod licences;
pub(crate) mod metadata;
mod sources;

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::steps::{Workspace, output_of};
use crate::tidy::metadata::Metadata;

/// A broken rule: where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// A path in the repository with a line, or the name of a crate.
    place: String,
    message: String,
}

impl Problem {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}

/// A text file of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceFile {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

/// Checks all rules; any problem is an error.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let metadata = Metadata::of(workspace)?;
    let files = files(workspace)?;
    let crates: Vec<&str> = metadata.members.iter().map(|it| it.name.as_str()).collect();

    let mut problems = edges::check(&metadata.members);
    problems.extend(licences::check(&metadata.packages));
    problems.extend(sources::check(&files));
    problems.extend(documents::check(&files, &crates));
    problems.sort();
    for problem in &problems {
        println!("   {problem}");
    }
    match problems.len() {
        0 => Ok(()),
        1 => bail!("1 problem"),
        count => bail!("{count} problems"),
    }
}

/// All text files that git tracks or would add; a file of other bytes is none of ours to judge.
fn files(workspace: &Workspace) -> Result<Vec<SourceFile>> {
    // CI may run as root in a clone that belongs to somebody else, which git refuses to read
    // unless told that it is meant.
    let arguments = "-c safe.directory=* ls-files -z --cached --others --exclude-standard";
    let listed =
        output_of(Command::new("git").args(arguments.split(' ')).current_dir(&workspace.root))?;
    let mut paths: Vec<&str> = listed.split('\0').filter(|it| !it.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::new();
    for path in paths {
        let full: PathBuf = workspace.root.join(path);
        // A tracked file may be deleted in the working tree, and a link may lead anywhere.
        if !full.symlink_metadata().is_ok_and(|it| it.is_file()) {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("{}", full.display()))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path: path.to_owned(), text });
        }
    }
    Ok(files)
}
