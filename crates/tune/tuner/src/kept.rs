//! The files of a report in their directory: writes those of now and takes away what an earlier report left.
//!
//! The run and `ringloom report` call it.
//!
//! Invariants: afterwards the directory has the files of one report, whatever kind the one before was. Only files with the
//! names of a report are removed, and only if they say that ringloom wrote them (`is_ours`), which `remove` asks; a
//! directory goes only when that left it empty. Only configurations, which are below directories, may have control
//! characters.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use anyhow::{Context, Result};
use plan::units::printable;
use records::results::FILE_NAME;
use report::{Part, configuration_names};
use storage::machine::is_same;

/// The comparison of two results, beside its page.
pub(crate) const COMPARISON: &str = "compare.md";
/// What the beginning of a configuration says.
const CONFIGURATION_SAYS: &[u8] = b"ringloom tune";
/// What the beginning of a page says.
const PAGE_SAYS: &[u8] = b"<meta name=\"generator\" content=\"ringloom report\">";
/// How far that may be from there.
const SAID_WITHIN: u64 = 4096;
/// How a text begins.
const TEXT_BEGINS: [&[u8]; 3] =
    [b"# ringloom tune\n", b"# ringloom report\n", b"# ringloom report: two runs\n"];
/// How a table of rows begins, as every version writes it.
const TABLE_BEGINS: &[u8] =
    b"device,image,aio,fs,stripe,delay,vms,disks,op,bs,jobs,iodepth,subject,";
/// How a row as JSON begins.
const ROW_BEGINS: &[u8] = b"{\"device\":\"";

/// All names that an earlier report may have left there: of the first part and the comparison, and of further parts. A
/// further part has all its files of a report, or a configuration: else a file called `report-2.html` is the user's.
fn earlier(out: &Path) -> Vec<String> {
    let configurations = configuration_names();
    let of = |part: Part| configurations.iter().map(move |name| part.named(name));
    let is_file = |name: String| out.join(name).is_file();
    let is_there = |part: &Part| part.reports().all(is_file) || of(*part).any(is_file);
    let mut further: Vec<Part> = Part::after(1).take_while(is_there).collect();
    // From the last on: a command that is interrupted leaves no gap.
    further.reverse();
    let parts = further.into_iter().chain([Part::FIRST]);
    // Nobody compares into a directory of results: what is there, somebody has put there.
    let comparison = (!out.join(FILE_NAME).exists()).then(|| COMPARISON.to_owned());
    parts.flat_map(|part| of(part).chain(part.reports())).chain(comparison).collect()
}

/// Whether ringloom wrote it, by how it begins: a text of the user may well speak of `ringloom tune`. There may be no row.
fn is_ours(path: &Path) -> bool {
    // A pipe would have to be waited for.
    if !path.is_file() {
        return false;
    }
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SAID_WITHIN).read_to_end(&mut begin));
    let says = |mark: &[u8]| begin.windows(mark.len()).any(|part| part == mark);
    read.is_ok()
        && match path.extension().and_then(|it| it.to_str()) {
            Some("csv") => begin.starts_with(TABLE_BEGINS),
            Some("jsonl") => begin.is_empty() || begin.starts_with(ROW_BEGINS),
            Some("html") => says(PAGE_SAYS),
            Some("md") => TEXT_BEGINS.into_iter().any(|it| begin.starts_with(it)),
            Some(_) | None => says(CONFIGURATION_SAYS),
        }
}

/// Writes the files, by path below `out`; removes those of an earlier report that are not among them, and never these
/// results, which may have the name of one and look like it.
///
/// # Errors
/// The file that cannot be written or removed.
pub(crate) fn write(out: &Path, results: &[&Path], files: &[(String, String)]) -> Result<()> {
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
    let is_result = |name: &String| results.iter().any(|it| is_same(it, &out.join(name)));
    let stale = |name: &&String| !written.contains(name) && !is_result(name);
    earlier(out).iter().filter(stale).try_for_each(|name| remove(out, name))
}

/// What is written. A configuration is byte for byte what it says, as the names of files may have any; all else is for a
/// reader, whose terminal may obey them.
fn content<'a>(name: &str, text: &'a str) -> Cow<'a, str> {
    if name.contains('/') { text.into() } else { printable(text).into() }
}

/// Removes a file that ringloom wrote, and the directories below `out` that are empty then.
fn remove(out: &Path, name: &str) -> Result<()> {
    let path = out.join(name);
    if !is_ours(&path) {
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

    /// As ringloom writes them.
    fn named(names: &[&str]) -> Vec<(String, String)> {
        let content = |name: &str| match Path::new(name).extension().and_then(|it| it.to_str()) {
            Some("csv") => TABLE_BEGINS,
            Some("jsonl") => ROW_BEGINS,
            Some("html") => PAGE_SAYS,
            Some("md") => TEXT_BEGINS[0],
            Some(_) | None => b"by ringloom tune",
        };
        let text = |name| String::from_utf8(content(name).to_vec()).unwrap();
        names.iter().map(|name| ((*name).to_owned(), text(name))).collect()
    }

    #[test]
    fn configurations_of_an_earlier_answer_are_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let is_there = |name: &str| out.join(name).exists();
        write(out, &[], &named(&["config/ringloom/serve.sh", "config/warnings.txt"])).unwrap();
        write(out, &[], &named(&["report.md", "config/warnings.txt"])).unwrap();
        assert!(is_there("config/warnings.txt") && !is_there("config/ringloom"));
        write(out, &[], &named(&["report.md"])).unwrap();
        assert!(is_there("report.md") && !is_there("config"));
    }

    #[test]
    fn parts_of_an_earlier_report_are_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let files = |part: Part| part.reports().chain([part.named("config/ringloom/serve.sh")]);
        let three: Vec<String> = Part::all(3).flat_map(files).collect();
        let three: Vec<&str> = three.iter().map(String::as_str).collect();
        write(out, &[], &named(&three)).unwrap();
        let earlier = earlier(out);
        let place = |wanted: &str| earlier.iter().position(|name| name == wanted).unwrap();
        assert!(place("report-3.jsonl") < place("report-2.md"), "{earlier:?}");
        write(out, &[], &named(&three[..4])).unwrap();
        let names = || std::fs::read_dir(out).unwrap().count();
        assert!(Part::FIRST.reports().all(|name| out.join(name).exists()) && names() == 4);
        // One that was not written whole.
        std::fs::create_dir_all(out.join("config-2/ringloom")).unwrap();
        for (name, text) in named(&["config-2/ringloom/serve.sh", "report-2.md"]) {
            std::fs::write(out.join(name), text).unwrap();
        }
        write(out, &[], &named(&three[..4])).unwrap();
        assert_eq!(names(), 4);
    }

    #[test]
    fn what_the_user_put_beside_them_stays() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let own = ["config/ringloom/serve-mine.sh", "config/qemu.args", "serve.sh", "report-2.md"];
        write(out, &[], &named(&own)).unwrap();
        write(out, &[], &named(&["config/ringloom/serve.sh"])).unwrap();
        std::fs::create_dir_all(out.join("config/qemu-iothreads/qemu.args")).unwrap();
        write(out, &[], &[]).unwrap();
        assert!(!out.join("config/ringloom/serve.sh").exists());
        for name in own.iter().chain(&["config/qemu-iothreads/qemu.args"]) {
            assert!(out.join(name).exists(), "{name}");
        }
        // Of names that ringloom gives, too.
        let namesakes = ["config/warnings.txt", "config-2/ringloom/serve.sh", COMPARISON];
        let reports: Vec<String> = Part::all(2).flat_map(Part::reports).collect();
        let all = namesakes.iter().map(|name| (*name).to_owned()).chain(reports);
        let names: Vec<String> = all.collect();
        for text in ["mine", "# Disks\n\nmeasured by `ringloom tune` and ringloom report\n"] {
            let is_mine = |name: &&String| text == "mine" || !name.contains('/');
            let all: Vec<(String, String)> =
                names.iter().filter(is_mine).map(|name| (name.clone(), text.to_owned())).collect();
            write(out, &[], &all).unwrap();
            write(out, &[], &[]).unwrap();
            for (name, _) in &all {
                assert!(out.join(name).exists(), "{name}: {text}");
            }
        }
        // And a comparison that was put beside results.
        write(out, &[], &named(&[COMPARISON, FILE_NAME])).unwrap();
        write(out, &[], &[]).unwrap();
        assert!(out.join(COMPARISON).exists());
        std::fs::remove_file(out.join(FILE_NAME)).unwrap();
        write(out, &[], &[]).unwrap();
        assert!(!out.join(COMPARISON).exists());
    }

    #[test]
    fn a_directory_elsewhere_is_emptied_and_its_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (out, elsewhere) = (directory.path().join("out"), directory.path().join("elsewhere"));
        std::fs::create_dir_all(&out).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, out.join("config")).unwrap();
        write(&out, &[], &named(&["config/warnings.txt"])).unwrap();
        write(&out, &[], &named(&["report.md"])).unwrap();
        assert!(!elsewhere.join("warnings.txt").exists());
        assert!(out.join("config").is_symlink() && elsewhere.exists());
    }
}
