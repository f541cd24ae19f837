//! The files of a report in their directory: writes those of now and takes away what an earlier report left.
//!
//! The run and `ringloom report` call it.
//!
//! Invariants: only files with the names given are written or removed; a directory goes only when that left it empty.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

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
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let is_written = |name: &&String| files.iter().any(|(written, _)| written == *name);
    stale.iter().filter(|name| !is_written(name)).try_for_each(|name| remove(out, name))
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
    for directory in path.ancestors().skip(1).take_while(is_below) {
        match std::fs::remove_dir(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
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
    use crate::report::configuration_names;

    fn named(names: &[&str]) -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), String::new())).collect()
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
    }
}
