//! What of the file system is left to the daemon: what the command line names, and no more.
//!
//! Where it stands: worked out once, before anything is opened; the files' fence
//! ([`super::files`]) is built from it, and errors of opening are explained with it.
//!
//! Invariants: pure but for resolving links. A grant is a real path, without links.
//! Limits: what cannot be resolved now is left out; it cannot be opened now either.

use std::path::{Path, PathBuf};

use block::Access;

use crate::options::{Blockdev, Driver, Plan, Step};

/// Directories that hold more than disks: of these only the file that was named is granted.
const SHARED_DIRECTORIES: [&str; 2] = ["/", "/dev"];

/// What a place may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Images below this directory, or this image alone, are opened.
    Images(Access),
    /// A block device is opened and controlled.
    Device(Access),
    /// Sockets are made and removed in this directory, which is opened to be locked.
    Sockets,
    /// The pidfile is removed from this directory.
    Pidfile,
    /// How idle the host is.
    Statistics,
    /// Nowhere: what the standard streams of a daemon in the background become.
    Null,
}

/// One place that is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Where, without links.
    pub(crate) path: PathBuf,
    /// What for.
    pub(crate) for_what: Use,
}

/// All places that are left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    grants: Vec<Grant>,
}

/// Why a file cannot be opened any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Outside {
    /// It is somewhere else.
    #[error("{path} is outside the directories named at start; see --sandbox")]
    Elsewhere {
        /// Which file.
        path: PathBuf,
    },
    /// Nothing writable was named there.
    #[error(
        "{path} is in a directory from which only read-only disks were named at start; see \
         --sandbox"
    )]
    ReadOnly {
        /// Which file.
        path: PathBuf,
    },
}

impl Reach {
    /// What the plan names, seen from the current directory.
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut reach = Self::default();
        for step in &plan.steps {
            match step {
                Step::Object(_) => {}
                Step::Blockdev(blockdev) => {
                    blockdev.nodes().into_iter().for_each(|node| reach.add_node(node));
                }
                Step::Export(export) => reach.add_parent(&export.socket.path, Use::Sockets),
            }
        }
        if let Some(pidfile) = &plan.pidfile {
            reach.add_parent(pidfile, Use::Pidfile);
        }
        reach.add("/proc/stat".into(), Use::Statistics);
        reach.add("/dev/null".into(), Use::Null);
        reach
    }

    /// All of them, each once.
    pub(crate) fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Whether and why opening this file for a disk is fenced off. For a file that is not there, its
    /// directory counts.
    pub(crate) fn judge(&self, path: &Path, access: Access) -> Result<(), Outside> {
        let real = path.canonicalize().ok().or_else(|| real_parent(path));
        let Some(real) = real else { return Err(Outside::Elsewhere { path: path.to_path_buf() }) };
        let granted: Vec<Access> = self
            .grants
            .iter()
            .filter(|grant| real.starts_with(&grant.path))
            .filter_map(|grant| match grant.for_what {
                Use::Images(access) | Use::Device(access) => Some(access),
                Use::Sockets | Use::Pidfile | Use::Statistics | Use::Null => None,
            })
            .collect();
        match access {
            _ if granted.is_empty() => Err(Outside::Elsewhere { path: path.to_path_buf() }),
            Access::ReadWrite if !granted.contains(&Access::ReadWrite) => {
                Err(Outside::ReadOnly { path: path.to_path_buf() })
            }
            Access::ReadOnly | Access::ReadWrite => Ok(()),
        }
    }

    fn add_node(&mut self, blockdev: &Blockdev) {
        let access = if blockdev.read_only { Access::ReadOnly } else { Access::ReadWrite };
        match &blockdev.driver {
            Driver::File { filename, .. } => self.add_image(filename, access),
            Driver::HostDevice { filename, .. } => {
                // The directory of a device holds all others.
                if let Ok(device) = filename.canonicalize() {
                    self.add(device, Use::Device(access));
                }
            }
            // The histograms of delays are read before the fences are up.
            Driver::Raw { .. }
            | Driver::NullCo { .. }
            | Driver::Throttle { .. }
            | Driver::Delay { .. }
            | Driver::Stripe { .. }
            // What images name is opened before the fences are up.
            | Driver::Qcow2 { .. } => {}
        }
    }

    fn add_image(&mut self, filename: &Path, access: Access) {
        let Ok(image) = filename.canonicalize() else { return };
        let shared = |directory: &Path| SHARED_DIRECTORIES.iter().any(|it| directory == *it);
        match image.parent() {
            Some(directory) if !shared(directory) => {
                self.add(directory.to_path_buf(), Use::Images(access));
            }
            Some(_) | None => self.add(image, Use::Images(access)),
        }
    }

    fn add_parent(&mut self, path: &Path, for_what: Use) {
        if let Some(directory) = real_parent(path) {
            self.add(directory, for_what);
        }
    }

    fn add(&mut self, path: PathBuf, for_what: Use) {
        let grant = Grant { path, for_what };
        if !self.grants.contains(&grant) {
            self.grants.push(grant);
        }
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
    use crate::options::{Command, parse};

    fn plan(line: &[String]) -> Plan {
        match parse(line.iter().map(Into::into)).unwrap() {
            Command::Serve(plan) => plan,
            other @ (Command::Help(_) | Command::Version) => panic!("{other:?} is no plan"),
        }
    }

    fn node(name: &str, path: &Path, read_only: &str) -> [String; 2] {
        let path = path.display();
        let text = format!("file,node-name={name},filename={path},read-only={read_only}");
        ["--blockdev".to_owned(), text]
    }

    fn export(name: &str, socket: &Path) -> [String; 2] {
        let path = socket.display();
        let text =
            format!("vhost-user-blk,id={name},node-name={name},addr.type=unix,addr.path={path}");
        ["--export".to_owned(), text]
    }

    #[test]
    fn directories_are_granted_where_links_lead_and_not_where_they_stand() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["pool", "links", "run"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("pool/a.img"), [0; 512]).unwrap();
        std::os::unix::fs::symlink(root.join("pool/a.img"), root.join("links/a")).unwrap();
        std::os::unix::fs::symlink(root.join("run"), root.join("links/run")).unwrap();
        let mut line = node("a", &root.join("links/a"), "on").to_vec();
        line.extend(export("a", &root.join("links/run/a.sock")));
        line.extend(["--pidfile".to_owned(), root.join("run/pid").display().to_string()]);
        let reach = Reach::of(&plan(&line));
        let at = |name: &str, for_what| Grant { path: root.join(name), for_what };
        let ours: Vec<_> =
            reach.grants().iter().filter(|it| it.path.starts_with(&root)).cloned().collect();
        let expected = [
            at("pool", Use::Images(Access::ReadOnly)),
            at("run", Use::Sockets),
            at("run", Use::Pidfile),
        ];
        assert_eq!(ours, expected);
    }

    #[test]
    fn what_was_not_named_is_judged_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["read", "write", "other"] {
            std::fs::create_dir(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("a.img"), [0; 512]).unwrap();
        }
        std::os::unix::fs::symlink(root.join("other/a.img"), root.join("write/link")).unwrap();
        let mut line = node("r", &root.join("read/a.img"), "on").to_vec();
        line.extend(node("w", &root.join("write/a.img"), "off"));
        let reach = Reach::of(&plan(&line));
        let judge = |name: &str, access| reach.judge(&root.join(name), access);
        let elsewhere = |name: &str| Err(Outside::Elsewhere { path: root.join(name) });
        assert_eq!(judge("read/a.img", Access::ReadOnly), Ok(()));
        assert_eq!(judge("read/new.img", Access::ReadOnly), Ok(()));
        assert_eq!(judge("write/new.img", Access::ReadWrite), Ok(()));
        let read_only = Outside::ReadOnly { path: root.join("read/a.img") };
        assert_eq!(judge("read/a.img", Access::ReadWrite), Err(read_only));
        assert_eq!(judge("other/a.img", Access::ReadOnly), elsewhere("other/a.img"));
        assert_eq!(judge("write/link", Access::ReadOnly), elsewhere("write/link"));
        assert_eq!(judge("none/a.img", Access::ReadOnly), elsewhere("none/a.img"));
        let said = judge("other/a.img", Access::ReadOnly).unwrap_err().to_string();
        assert!(said.contains("outside the directories named at start; see --sandbox"), "{said}");
    }

    #[test]
    fn of_directories_with_more_than_disks_only_the_file_is_granted() {
        let mut reach = Reach::default();
        reach.add_image(Path::new("/dev/null"), Access::ReadWrite);
        let null = Grant { path: "/dev/null".into(), for_what: Use::Images(Access::ReadWrite) };
        assert_eq!(reach.grants(), [null]);
        assert!(reach.judge(Path::new("/dev/zero"), Access::ReadOnly).is_err());
    }
}
