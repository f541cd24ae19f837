//! The files of a report in their directory: writes those of now and takes away what an earlier report left.
//!
//! The run and `ringloom report` call it.
//!
//! Invariants: only files with the names given are written or removed, and removed only if ringloom wrote them (`MARK`); a
//! directory goes only when that left it empty. Only configurations, which are below directories, may have control
//! characters.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{Part, configuration_names};
use crate::units::printable;

/// What the beginning of each file says that may be removed.
const MARK: &[u8] = b"ringloom tune";
/// How far it may be from there.
const MARK_WITHIN: u64 = 4096;

/// Names of files that earlier reports may have left there: the configurations of so many parts, and all files of further
/// parts. A part has all its files of a report, or a configuration: else a file called `report-2.html` is the user's.
pub(crate) fn stale(out: &Path, parts: usize) -> Vec<String> {
    let configurations = configuration_names();
    let of = |part: Part| configurations.iter().map(move |name| part.named(name));
    let is_file = |name: String| out.join(name).is_file();
    let is_ours = |name: String| is_marked(&out.join(name));
    let is_whole = |part: Part| part.reports().all(is_file) && part.reports().any(is_ours);
    let is_there = |part: &Part| is_whole(*part) || of(*part).any(is_ours);
    let mut further: Vec<Part> = Part::after(parts).take_while(is_there).collect();
    // From the last on: a command that is interrupted leaves no gap.
    further.reverse();
    let reports = |part: Part| {
        part.reports().filter(move |name| is_whole(part) || is_marked(&out.join(name)))
    };
    let ours = |part: Part| of(part).filter(|name| is_marked(&out.join(name)));
    let further = further.into_iter().flat_map(|part| ours(part).chain(reports(part)));
    Part::all(parts).flat_map(ours).chain(further).collect()
}

/// Whether it says at its beginning that ringloom wrote it.
fn is_marked(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MARK_WITHIN).read_to_end(&mut begin));
    read.is_ok() && begin.windows(MARK.len()).any(|part| part == MARK)
}

/// Writes the files, by path below `out`; removes those of `stale` that are not among them.
///
/// # Errors
/// The file that cannot be written or removed.
pub(crate) fn write(out: &Path, files: &[(String, String)], stale: &[String]) -> Result<()> {
    for (name, text) in files {
        let path = out.join(name);
        let directory = path.parent().unwrap_or(out);
        std::fs::create_dir_all(directory)
            .with_context(|| format!("create {}", directory.display()))?;
        std::fs::write(&path, content(name, text).as_bytes())
            .with_context(|| format!("write {}", path.display()))?;
    }
    // A file may have many parts.
    let written: HashSet<&String> = files.iter().map(|(name, _)| name).collect();
    stale.iter().filter(|name| !written.contains(name)).try_for_each(|name| remove(out, name))
}

/// What is written. A configuration is byte for byte what it says, as the names of files may have any; all else is for a
/// reader, whose terminal may obey them.
fn content<'a>(name: &str, text: &'a str) -> Cow<'a, str> {
    if name.contains('/') { text.into() } else { printable(text).into() }
}

/// Removes a file, and the directories below `out` that are empty then.
fn remove(out: &Path, name: &str) -> Result<()> {
    let path = out.join(name);
    // A directory of that name is not of a report.
    if !path.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        return Ok(());
    }
    std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    let is_below = |directory: &&Path| *directory != out;
    let is_of_user = |kind| matches!(kind, ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory);
    for directory in path.ancestors().skip(1).take_while(is_below) {
        match std::fs::remove_dir(directory) {
            Ok(()) => {}
            // The user's: something else is in it, or it is a link to a directory elsewhere.
            Err(error) if is_of_user(error.kind()) => break,
            Err(error) => {
                return Err(error).with_context(|| format!("remove {}", directory.display()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), "by ringloom tune".to_owned())).collect()
    }

    #[test]
    fn configurations_of_an_earlier_answer_are_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let stale = configuration_names();
        let is_there = |name: &str| out.join(name).exists();
        write(out, &named(&["config/ringloom/serve.sh", "config/warnings.txt"]), &stale).unwrap();
        write(out, &named(&["report.md", "config/warnings.txt"]), &stale).unwrap();
        assert!(is_there("config/warnings.txt") && !is_there("config/ringloom"));
        write(out, &named(&["report.md"]), &stale).unwrap();
        assert!(is_there("report.md") && !is_there("config"));
    }

    #[test]
    fn parts_of_an_earlier_report_are_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let files = |part: Part| part.reports().chain([part.named("config/ringloom/serve.sh")]);
        let three: Vec<String> = Part::all(3).flat_map(files).collect();
        let three: Vec<&str> = three.iter().map(String::as_str).collect();
        write(out, &named(&three), &[]).unwrap();
        let stale = stale(out, 1);
        let place = |wanted: &str| stale.iter().position(|name| name == wanted).unwrap();
        assert!(place("report-3.jsonl") < place("report-2.md"), "{stale:?}");
        write(out, &named(&three[..4]), &stale).unwrap();
        let names = || std::fs::read_dir(out).unwrap().count();
        assert!(Part::FIRST.reports().all(|name| out.join(name).exists()) && names() == 4);
        // One that was not written whole.
        write(out, &named(&["config-2/ringloom/serve.sh", "report-2.md"]), &[]).unwrap();
        write(out, &[], &super::stale(out, 1)).unwrap();
        assert_eq!(names(), 4);
    }

    #[test]
    fn what_the_user_put_beside_them_stays() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let own = ["config/ringloom/serve-mine.sh", "config/qemu.args", "serve.sh"];
        write(out, &named(&own), &[]).unwrap();
        write(out, &named(&["config/ringloom/serve.sh"]), &[]).unwrap();
        std::fs::create_dir_all(out.join("config/qemu-iothreads/qemu.args")).unwrap();
        write(out, &[], &configuration_names()).unwrap();
        assert!(!out.join("config/ringloom/serve.sh").exists());
        for name in own.iter().chain(&["config/qemu-iothreads/qemu.args"]) {
            assert!(out.join(name).exists(), "{name}");
        }
        // Of names that ringloom gives, too.
        let namesakes = ["config/warnings.txt", "config-2/ringloom/serve.sh", "report-2.md"];
        let reports: Vec<String> = Part::after(1).next().unwrap().reports().collect();
        let all = namesakes.iter().map(|name| (*name).to_owned()).chain(reports);
        let all: Vec<(String, String)> = all.map(|name| (name, "mine".to_owned())).collect();
        write(out, &all, &[]).unwrap();
        write(out, &[], &stale(out, 1)).unwrap();
        for (name, _) in &all {
            assert!(out.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_directory_elsewhere_is_emptied_and_its_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (out, elsewhere) = (directory.path().join("out"), directory.path().join("elsewhere"));
        std::fs::create_dir_all(&out).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, out.join("config")).unwrap();
        write(&out, &named(&["config/warnings.txt"]), &[]).unwrap();
        write(&out, &named(&["report.md"]), &configuration_names()).unwrap();
        assert!(!elsewhere.join("warnings.txt").exists());
        assert!(out.join("config").is_symlink() && elsewhere.exists());
    }
}
