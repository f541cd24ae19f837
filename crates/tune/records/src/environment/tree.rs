//! The files in which the kernel tells about itself, below a directory that is `/` but in tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use plan::lists::sorted;

/// A place with `proc` and `sys` in it.
#[derive(Clone, Debug)]
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn of_this_host() -> Self {
        Self(PathBuf::from("/"))
    }

    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self(root.to_path_buf())
    }

    /// The full path of a path without the leading slash.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file without surrounding space; `None` if it is missing or empty.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.path(path))
    }

    /// The content of a file as a number or the like.
    pub(super) fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The value of the first line `name : value`.
    pub(super) fn field(&self, path: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    }

    /// The names in a directory, in order; none if it is missing.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        names(&self.path(path))
    }
}

/// As `Tree::names`, of any directory.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    sorted(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()))
}

/// As `Tree::text`, of any file.
pub(super) fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
