//! A file on FUSE whose server leaves some questions unanswered for ever: what a hostile client can give a daemon in
//! place of memory.
//!
//! Invariants: whoever asks such a question sleeps until the file is dropped, and gets an error then.
//! Threads: one, of the crate `fuser`. Needs root, because only root may mount.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, Request,
};
use rustix::mount::{UnmountFlags, unmount};

use crate::fuse::attributes;

const NAME: &str = "file";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

/// What is never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// What the file is (fstat), and what its file system is (fstatfs).
    Attributes,
    /// A page of it.
    Page,
    /// That a descriptor of it was closed.
    Close,
}

/// An open file of this kind.
#[derive(Debug)]
pub struct SilentFile {
    session: Option<BackgroundSession>,
    directory: PathBuf,
    file: File,
    questions: Arc<Mutex<Questions>>,
}

impl SilentFile {
    /// Makes the directory, mounts a file of so many zeroes there, and opens it.
    pub fn mount(directory: &Path, bytes: u64, unanswered: Unanswered) -> Result<Self> {
        std::fs::create_dir(directory).context("make the mount point")?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("silent".to_owned())];
        let questions = Arc::new(Mutex::new(Questions::Kept(Vec::new())));
        let system = System { bytes, unanswered, questions: Arc::clone(&questions) };
        let session = fuser::spawn_mount(system, directory, &config)
            .with_context(|| format!("mount a silent file at {}", directory.display()))?;
        let file = File::options().read(true).write(true).open(directory.join(NAME));
        let file = file.context("open the silent file")?;
        Ok(Self { session: Some(session), directory: directory.to_owned(), file, questions })
    }
}

impl AsFd for SilentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        // Whoever waits gets an error, and whoever asks from now on.
        *self.questions.lock().expect("no holder panics") = Questions::Failed;
        // Detached: the other process may still have the file.
        let unmounted = unmount(&self.directory, UnmountFlags::DETACH);
        drop(self.session.take());
        if !std::thread::panicking() {
            assert!(unmounted.is_ok(), "{} stays mounted", self.directory.display());
        }
    }
}

/// What becomes of questions that are not answered.
#[derive(Debug)]
enum Questions {
    Kept(Vec<Kept>),
    Failed,
}

/// A question that was not answered; dropped, it is answered with an error.
#[derive(Debug)]
enum Kept {
    Attributes { _reply: ReplyAttr },
    Statistics { _reply: ReplyStatfs },
    Page { _reply: ReplyData },
    Close { _reply: ReplyEmpty },
}

struct System {
    bytes: u64,
    unanswered: Unanswered,
    questions: Arc<Mutex<Questions>>,
}

impl System {
    fn keep(&self, reply: Kept) {
        match &mut *self.questions.lock().expect("no holder panics") {
            Questions::Kept(kept) => kept.push(reply),
            Questions::Failed => drop(reply),
        }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            _ => (FileType::RegularFile, 0o666, self.bytes),
        };
        attributes(inode, kind, perm, size)
    }
}

impl Filesystem for System {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if inode == FILE && self.unanswered == Unanswered::Attributes {
            self.keep(Kept::Attributes { _reply: reply });
        } else {
            reply.attr(&TTL, &self.attributes(inode));
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        if self.unanswered == Unanswered::Attributes {
            self.keep(Kept::Statistics { _reply: reply });
        } else {
            reply.statfs(0, 0, 0, 0, 0, 4096, 255, 0);
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.unanswered == Unanswered::Page {
            self.keep(Kept::Page { _reply: reply });
        } else {
            reply.data(&vec![0; size as usize]);
        }
    }

    fn flush(&self, request: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if self.unanswered == Unanswered::Close && !is_ours(request) {
            self.keep(Kept::Close { _reply: reply });
        } else {
            reply.ok();
        }
    }
}

/// Whether a thread of this process asks, or one that was forked and is about to execute a program, which closes files.
fn is_ours(request: &Request) -> bool {
    let comm = |task: String| std::fs::read_to_string(format!("/proc/{task}/comm"));
    let asking = comm(request.pid().to_string());
    let own = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut own =
        own.filter_map(|task| comm(format!("self/task/{}", task.file_name().display())).ok());
    asking.is_ok_and(|asking| own.any(|own| own == asking))
}
