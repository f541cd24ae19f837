//! The file system: a directory with files in it.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::state::{Held, HeldReply, State, Verdict, Work, open_flags, opened};
use super::{Call, Effect, Operation};
use crate::fuse::attributes;

/// How long the kernel may remember how long a file is: a power cut may change that.
const TTL: Duration = Duration::ZERO;
/// The first file.
const FIRST: u64 = 2;

/// The number of a file; that of the directory is none.
fn place(inode: INodeNo) -> Option<usize> {
    usize::try_from(inode.0.checked_sub(FIRST)?).ok()
}

fn inode(place: usize) -> INodeNo {
    INodeNo(FIRST + place as u64)
}

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
        if inode == INodeNo::ROOT {
            return Some(attributes(inode, FileType::Directory, 0o755, 0));
        }
        let size = self.state().files.get(place(inode)?)?.content.len() as u64;
        Some(attributes(inode, FileType::RegularFile, 0o666, size))
    }

    fn getattr_of(&self, inode: INodeNo, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(found) => reply.attr(&TTL, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// A call without data in either direction.
    fn plain(
        &self,
        (inode, handle): (INodeNo, FileHandle),
        call: Call,
        work: Work,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        let Some(file) = place(inode).filter(|_| handle.0 == state.cuts) else {
            return reply.error(Errno::EIO);
        };
        match state.arrive(file, call, &work) {
            Verdict::Count(_) | Verdict::Data(_) => reply.ok(),
            Verdict::Failed(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Verdict::Held => state.hold(Held { file, call, reply: HeldReply::Plain(work, reply) }),
        }
    }
}

impl Filesystem for FileSystem {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.state().files.iter().position(|file| file.name == name);
        match found.and_then(|place| self.attributes(inode(place))) {
            Some(found) => reply.entry(&TTL, &found, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (place, cuts) = {
            let mut state = self.state();
            (state.add(name.to_owned(), Vec::new()), state.cuts)
        };
        let made = self.attributes(inode(place)).expect("it was made just now");
        reply.created(&TTL, &made, Generation(0), FileHandle(cuts), open_flags());
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(size), Some(file)) = (size, place(inode)) {
            let mut state = self.state();
            if handle.is_some_and(|it| it.0 != state.cuts) {
                return reply.error(Errno::EIO);
            }
            state.resize(file, size);
        }
        self.getattr_of(inode, reply);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.getattr_of(inode, reply);
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let call = Call { operation: Operation::Open, offset: 0, length: 0, stable: false };
        let mut state = self.state();
        let Some(file) = place(inode) else { return reply.error(Errno::EISDIR) };
        match state.fault(&call) {
            Some(Effect::Held) => state.hold(Held { file, call, reply: HeldReply::Open(reply) }),
            Some(Effect::Fails(errno)) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Some(Effect::Short(_)) | None => opened(reply, state.cuts),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size);
        let call = Call { operation: Operation::Read, offset, length, stable: false };
        let mut state = self.state();
        let Some(file) = place(inode).filter(|_| handle.0 == state.cuts) else {
            return reply.error(Errno::EIO);
        };
        match state.arrive(file, call, &Work::Read) {
            Verdict::Data(data) => reply.data(&data),
            Verdict::Failed(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
            Verdict::Held => state.hold(Held { file, call, reply: HeldReply::Read(reply) }),
            other @ Verdict::Count(_) => panic!("a read that is {other:?}"),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
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
        let Some(file) = place(inode).filter(|_| handle.0 == state.cuts) else {
            return reply.error(Errno::EIO);
        };
        match (state.arrive(file, call, &work), work) {
            (Verdict::Count(count), _) => reply.written(count),
            (Verdict::Failed(errno), _) => {
                reply.error(Errno::from_i32(errno.raw_os_error()));
            }
            (Verdict::Held, Work::Write(data)) => {
                state.hold(Held { file, call, reply: HeldReply::Write(data, reply) });
            }
            (verdict, _) => panic!("a write that is {verdict:?}"),
        }
    }

    fn fsync(&self, _: &Request, inode: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let call = Call { operation: Operation::Sync, offset: 0, length: 0, stable: false };
        self.plain((inode, handle), call, Work::Sync, reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let has = |flag| mode & flag != 0;
        let is_inside = has(libc::FALLOC_FL_KEEP_SIZE);
        let (operation, work) = match (has(libc::FALLOC_FL_ZERO_RANGE), is_inside) {
            _ if has(libc::FALLOC_FL_PUNCH_HOLE) => (Operation::Punch, Work::ZeroInside),
            (true, true) => (Operation::Zero, Work::ZeroInside),
            (true, false) => (Operation::Zero, Work::Zero),
            (false, true) => (Operation::Fill, Work::FillInside),
            (false, false) => (Operation::Fill, Work::Fill),
        };
        let call = Call { operation, offset, length, stable: false };
        self.plain((inode, handle), call, work, reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Of closing the file.
        reply.ok();
    }
}
