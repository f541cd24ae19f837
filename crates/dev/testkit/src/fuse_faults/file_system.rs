//! The file system: a directory with one file in it.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::state::{Held, HeldReply, State, Verdict, Work, opened};
use super::{Call, Effect, IMAGE, Operation};
use crate::fuse::attributes;

/// How long the kernel may remember that the file is there: nothing about it changes.
const TTL: Duration = Duration::from_secs(3600);
const FILE: INodeNo = INodeNo(2);

#[derive(Debug)]
pub(super) struct FileSystem {
    state: Arc<Mutex<State>>,
}

impl FileSystem {
    pub(super) fn new(state: Arc<Mutex<State>>) -> Self {
        Self { state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let size = self.state().content.len() as u64;
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE => (FileType::RegularFile, 0o666, size),
            _ => return None,
        };
        Some(attributes(inode, kind, perm, size))
    }

    /// A call without data in either direction.
    fn plain(&self, call: Call, work: Work, reply: ReplyEmpty) {
        let mut state = self.state();
        match state.arrive(call, &work) {
            Verdict::Count(_) | Verdict::Data(_) => reply.ok(),
            Verdict::Failed(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Verdict::Held => state.hold(Held { call, reply: HeldReply::Plain(work, reply) }),
        }
    }
}

impl Filesystem for FileSystem {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(found) if parent == INodeNo::ROOT && name == IMAGE => {
                reply.entry(&TTL, &found, Generation(0));
            }
            Some(_) | None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(found) => reply.attr(&TTL, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let call = Call { operation: Operation::Open, offset: 0, length: 0, stable: false };
        let mut state = self.state();
        match state.fault(&call) {
            Some(Effect::Held) => state.hold(Held { call, reply: HeldReply::Open(reply) }),
            Some(Effect::Fails(errno)) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Some(Effect::Short(_)) | None => opened(reply),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size);
        let call = Call { operation: Operation::Read, offset, length, stable: false };
        let mut state = self.state();
        match state.arrive(call, &Work::Read) {
            Verdict::Data(data) => reply.data(&data),
            Verdict::Failed(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Verdict::Held => state.hold(Held { call, reply: HeldReply::Read(reply) }),
            other @ Verdict::Count(_) => panic!("a read that is {other:?}"),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (length, stable) = (data.len() as u64, flags.0 & libc::O_DSYNC != 0);
        let call = Call { operation: Operation::Write, offset, length, stable };
        let work = Work::Write(data.to_vec());
        let mut state = self.state();
        match (state.arrive(call, &work), work) {
            (Verdict::Count(count), _) => reply.written(count),
            (Verdict::Failed(errno), _) => {
                reply.error(Errno::from_i32(errno.raw_os_error()));
            }
            (Verdict::Held, Work::Write(data)) => {
                state.hold(Held { call, reply: HeldReply::Write(data, reply) });
            }
            (verdict, _) => panic!("a write that is {verdict:?}"),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let call = Call { operation: Operation::Sync, offset: 0, length: 0, stable: false };
        self.plain(call, Work::Sync, reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (operation, work) = if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            (Operation::Punch, Work::Zero)
        } else if mode & libc::FALLOC_FL_ZERO_RANGE != 0 {
            (Operation::Zero, Work::Zero)
        } else {
            (Operation::Fill, Work::Fill)
        };
        self.plain(Call { operation, offset, length, stable: false }, work, reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Of closing the file.
        reply.ok();
    }
}
