//! Which monitors are watched: sockets that were named, and what patterns and directories have now.
//!
//! Invariants: of a directory only sockets are taken whose names say that they are monitors. Others may be disks' sockets, each for
//! one client at a time: whoever connects to one keeps a guest out.
//! Limits: `SOCKETS_MAX` sockets, `ENTRIES_MAX` entries of a directory.

use std::fs::{DirEntry, read_dir};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::arguments::TopArgs;

/// So many daemons are watched, each by a thread.
pub(crate) const SOCKETS_MAX: usize = 1024;

/// So many entries of a directory are looked at.
const ENTRIES_MAX: usize = 65_536;

/// What the names of monitors' sockets have.
const MONITOR_NAMES: [&str; 2] = ["qmp", "monitor"];

/// Where monitors are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Socket(PathBuf),
    Pattern(String),
    Directory(PathBuf),
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sources(Vec<Source>);

impl Sources {
    /// Those of a command line, or the one that the environment names.
    pub(crate) fn of(arguments: &TopArgs) -> Result<Self> {
        let mut all = Vec::new();
        if arguments.sockets.is_empty() || arguments.socket.is_some() {
            all.push(Source::Socket(ctl::daemon_socket(arguments.socket.as_deref())?));
        }
        for path in &arguments.sockets {
            all.push(source(path)?);
        }
        Ok(Self(all))
    }

    /// The sockets that there are now, each once. Those that were named are among them, whether they are there or not.
    pub(crate) fn find(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        for path in self.0.iter().flat_map(Source::find) {
            if found.len() == SOCKETS_MAX {
                break;
            }
            if !found.contains(&path) {
                found.push(path);
            }
        }
        found
    }

    /// Whether a socket was named, and so is waited for.
    pub(crate) fn names(&self, socket: &Path) -> bool {
        self.0.iter().any(|it| matches!(it, Source::Socket(path) if path == socket))
    }

    /// What is said if there is none.
    pub(crate) fn nothing(&self) -> String {
        let of = |it: &Source| match it {
            Source::Socket(path) => path.display().to_string(),
            Source::Pattern(pattern) => format!("no socket is called {pattern}"),
            Source::Directory(path) => format!(
                "no socket in {}, or one level below, has qmp or monitor in its name",
                path.display()
            ),
        };
        self.0.iter().map(of).collect::<Vec<_>>().join("; ")
    }
}

fn source(path: &Path) -> Result<Source> {
    let text = path.to_string_lossy();
    if path.is_dir() {
        Ok(Source::Directory(path.to_owned()))
    } else if text.contains(['*', '?', '[']) && !path.exists() {
        glob::Pattern::new(&text).with_context(|| format!("pattern {text}"))?;
        Ok(Source::Pattern(text.into_owned()))
    } else {
        Ok(Source::Socket(path.to_owned()))
    }
}

impl Source {
    fn find(&self) -> Vec<PathBuf> {
        match self {
            Self::Socket(path) => vec![path.clone()],
            Self::Pattern(pattern) => {
                let all = glob::glob(pattern).into_iter().flatten().flatten();
                all.take(ENTRIES_MAX).filter(|path| is_socket(path)).collect()
            }
            Self::Directory(path) => below(path),
        }
    }
}

fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.file_type().is_socket())
}

/// The monitors of a directory and of those in it, by name.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = monitors(directory);
    for entry in entries(directory) {
        if entry.path().is_dir() {
            found.extend(monitors(&entry.path()));
        }
    }
    found.sort();
    found
}

fn monitors(directory: &Path) -> Vec<PathBuf> {
    let is_named = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        MONITOR_NAMES.iter().any(|it| name.contains(it))
    };
    let paths = entries(directory).filter(is_named).map(|entry| entry.path());
    paths.filter(|path| is_socket(path)).collect()
}

/// What cannot be read has nothing for this user.
fn entries(directory: &Path) -> impl Iterator<Item = DirEntry> {
    read_dir(directory).into_iter().flatten().flatten().take(ENTRIES_MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn monitors_are_found_by_name_pattern_and_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name);
        let mut listeners = Vec::new();
        for vm in ["vm1", "vm2"] {
            std::fs::create_dir(path(vm)).expect("a directory");
            for name in ["qmp.sock", "disk.sock"] {
                listeners.push(UnixListener::bind(path(vm).join(name)).expect("a socket"));
            }
            std::fs::write(path(vm).join("qmp.log"), "").expect("a file");
        }
        listeners.push(UnixListener::bind(path("monitor")).expect("a socket"));
        let found = |given: PathBuf| {
            let found = Sources(vec![source(&given).expect("a source")]).find();
            let short = |it: &PathBuf| {
                let inner = it.strip_prefix(root.path()).expect("it is below");
                inner.display().to_string()
            };
            found.iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(found(path("")), ["monitor", "vm1/qmp.sock", "vm2/qmp.sock"]);
        assert_eq!(found(path("vm1")), ["vm1/qmp.sock"]);
        assert_eq!(found(path("*/qmp.*")), ["vm1/qmp.sock", "vm2/qmp.sock"]);
        assert_eq!(found(path("vm1/disk.sock")), ["vm1/disk.sock"]);
        assert_eq!(found(path("vm3/qmp.sock")), ["vm3/qmp.sock"]);
        assert!(source(&path("[")).is_err());
        let both = Sources(vec![Source::Socket(path("monitor")), Source::Directory(path(""))]);
        assert_eq!(both.find().len(), 3);
        assert!(both.names(&path("monitor")) && !both.names(&path("vm1/qmp.sock")));
    }
}
