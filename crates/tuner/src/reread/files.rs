//! The files that `ringloom report` writes, beside or apart from the results.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::kept;
use crate::output::print;

/// What is written.
pub(super) struct Written<'a> {
    /// By name.
    pub(super) files: &'a [(String, String)],
    /// Names of files that an earlier report may have left: they go unless they are written.
    pub(super) stale: &'a [String],
}

/// Writes the files, none of them over these sources, and prints where they are.
///
/// # Errors
/// The file that cannot be written or removed, or that is one of the sources; then nothing is written.
pub(super) fn write(out: &Path, sources: &[&Path], written: &Written<'_>) -> Result<()> {
    let Written { files, stale } = *written;
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| out.join(name)).collect();
    let gone: Vec<PathBuf> = stale.iter().map(|name| out.join(name)).collect();
    let is_source = |path: &&PathBuf| sources.iter().any(|source| is_same(source, path));
    if let Some(path) = paths.iter().chain(&gone).find(is_source) {
        bail!("{} holds the results: name another --out", path.display());
    }
    kept::write(out, files, stale)
        .with_context(|| format!("write to {} (--out names another directory)", out.display()))?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    print(&format!("Written: {}\n", names.join(", ")))
}

/// Whether both are there and one file, whatever its names.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|it| (it.dev(), it.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_never_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("report.jsonl");
        std::fs::write(&source, "results").unwrap();
        let files = ["report.md", "report.jsonl"].map(|name| (name.to_owned(), String::new()));
        let stale = ["report.jsonl".to_owned()];
        for written in
            [Written { files: &files, stale: &[] }, Written { files: &files[..1], stale: &stale }]
        {
            let error = write(directory.path(), &[&source], &written).unwrap_err().to_string();
            assert!(
                error.contains("report.jsonl holds the results: name another --out"),
                "{error}"
            );
        }
        assert_eq!(std::fs::read_to_string(&source).unwrap(), "results");
        assert!(!directory.path().join("report.md").exists(), "nothing is written then");
        let written = Written { files: &files, stale: &[] };
        write(&directory.path().join("new"), &[&source], &written).unwrap();
        assert!(directory.path().join("new/report.jsonl").exists());
    }
}
