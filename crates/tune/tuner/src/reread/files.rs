//! The files that `ringloom report` writes, beside or apart from the results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::kept;

/// Writes the files, none of them over these sources. Returns the line that tells where they are.
///
/// # Errors
/// The file that cannot be written or removed, or that is one of the sources; then nothing is written.
pub(super) fn write(out: &Path, sources: &[&Path], files: &[(String, String)]) -> Result<String> {
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| out.join(name)).collect();
    let is_source =
        |path: &&PathBuf| sources.iter().any(|source| storage::machine::is_same(source, path));
    if let Some(path) = paths.iter().find(is_source) {
        bail!("{} holds the results: name another --out", path.display());
    }
    kept::write(out, sources, files)
        .with_context(|| format!("write to {} (--out names another directory)", out.display()))?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    Ok(format!("Written: {}\n", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_never_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("report.jsonl");
        // As rows begin, too.
        let results = "{\"device\":\"raw\"}\n";
        std::fs::write(&source, results).unwrap();
        let files = ["report.md", "report.jsonl"].map(|name| (name.to_owned(), String::new()));
        let error = write(directory.path(), &[&source], &files).unwrap_err().to_string();
        assert!(error.contains("report.jsonl holds the results: name another --out"), "{error}");
        assert!(!directory.path().join("report.md").exists(), "nothing is written then");
        // Beside them is room for a report of other files.
        write(directory.path(), &[&source], &files[..1]).unwrap();
        assert_eq!(std::fs::read_to_string(&source).unwrap(), results);
        write(&directory.path().join("new"), &[&source], &files).unwrap();
        assert!(directory.path().join("new/report.jsonl").exists());
    }
}
