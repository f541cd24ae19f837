//! What of the file system is left to the daemon once its fences are up.
//!
//! Where it stands: worked out once, before anything is opened; the files' fence
//! ([`super::landlock`]) is built from it.
//!
//! Invariants: no file is granted, because everything that is served is open by then, and a
//! descriptor needs no grant. Only a log file that is moved away is made anew, and commands open what `--allow-below` names. Pure but for resolving links and looking
//! into the log's directory. A grant is a real path, without links.
//! Limits: landlock grants a directory with all that is below it, or a file; removing belongs to
//! directories. What cannot be resolved now is left out.

use std::path::{Path, PathBuf};

use block::Access;

use super::{AllowedDirectory, ConnectNeeds};

/// What a directory is granted for: removing a socket or the pidfile, or making new log files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryGrantPurpose {
    /// A socket or the pidfile is removed from this directory at the end.
    Removal,
    /// The log file is made anew in this directory, which holds nothing but logs.
    Logs,
    /// Sockets below may be connected to; only newer kernels know.
    Connecting,
    /// Commands read what is below.
    Reading,
    /// Commands read, write, make and remove what is below.
    Writing,
}

/// A path that stays usable inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileGrant {
    /// Where, without links.
    pub(super) path: PathBuf,
    /// What for.
    pub(super) for_what: DirectoryGrantPurpose,
}

/// The places of what is removed at the end, of the log, and of what commands may open, seen from the current directory;
/// each place once.
pub(super) fn of(
    removed: &[&Path],
    log_file: Option<&Path>,
    allowed: &[AllowedDirectory],
    connects: &ConnectNeeds,
) -> Vec<FileGrant> {
    let grant = |AllowedDirectory { path, access }: &AllowedDirectory| {
        let for_what = match access {
            Access::ReadOnly => DirectoryGrantPurpose::Reading,
            Access::ReadWrite => DirectoryGrantPurpose::Writing,
        };
        FileGrant { path: path.clone(), for_what }
    };
    let mut grants: Vec<FileGrant> = allowed.iter().map(grant).collect();
    if connects.below_allowed {
        let written = allowed.iter().filter(|it| it.access == Access::ReadWrite);
        let connecting = DirectoryGrantPurpose::Connecting;
        grants.extend(written.map(|it| FileGrant { path: it.path.clone(), for_what: connecting }));
    }
    // A server that is started again has another file there.
    for path in &connects.sockets {
        add_parent(&mut grants, path, DirectoryGrantPurpose::Connecting);
    }
    for path in removed {
        add_parent(&mut grants, path, DirectoryGrantPurpose::Removal);
    }
    if let Some(log_file) = log_file
        && real_parent(log_file).is_some_and(|directory| holds_only_logs(&directory))
    {
        add_parent(&mut grants, log_file, DirectoryGrantPurpose::Logs);
    }
    grants
}

/// Whether all that a directory holds are files that are named as logs. Landlock knows no names: whoever may make one
/// file in a directory and write it may write all that are there.
fn holds_only_logs(directory: &Path) -> bool {
    let is_log = |entry: std::fs::DirEntry| {
        entry.file_name().to_string_lossy().contains(".log")
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    std::fs::read_dir(directory)
        .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_log)))
}

fn add_parent(grants: &mut Vec<FileGrant>, path: &Path, for_what: DirectoryGrantPurpose) {
    let Some(path) = real_parent(path) else { return };
    let grant = FileGrant { path, for_what };
    if !grants.contains(&grant) {
        grants.push(grant);
    }
}

/// The directory of a path, without links.
fn real_parent(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.parent()?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_directories_of_sockets_and_pidfile_are_granted_and_where_links_lead() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["run", "pids"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("run"), root.join("link")).unwrap();
        let removed = ["link/a.sock", "link/b.sock", "pids/pid"].map(|name| root.join(name));
        let granted =
            |name| FileGrant { path: root.join(name), for_what: DirectoryGrantPurpose::Removal };
        assert_eq!(
            of(&removed.each_ref().map(PathBuf::as_path), None, &[], &ConnectNeeds::default()),
            [granted("run"), granted("pids")]
        );
    }

    #[test]
    fn the_directory_of_the_log_is_granted_if_it_holds_nothing_but_logs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let file = root.join("a.log");
        let of = || of(&[], Some(&file), &[], &ConnectNeeds::default());
        let granted = [FileGrant { path: root.clone(), for_what: DirectoryGrantPurpose::Logs }];
        assert_eq!(of(), granted);
        for name in ["a.log", "a.log.1.gz", "b.log"] {
            std::fs::write(root.join(name), []).unwrap();
        }
        assert_eq!(of(), granted);
        std::fs::write(root.join("disk.img"), []).unwrap();
        assert_eq!(of(), []);
        std::fs::remove_file(root.join("disk.img")).unwrap();
        std::fs::create_dir(root.join("old.log")).unwrap();
        assert_eq!(of(), []);
    }
}
