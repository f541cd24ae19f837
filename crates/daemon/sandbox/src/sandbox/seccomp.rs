//! The fence around system calls: which ones the daemon makes once it serves.
//!
//! Four filters, because one knows two verdicts: what only an attacker would call ends the
//! process, what has a substitute is answered with ENOSYS so that the C library takes that, opening
//! is answered with EACCES as a file without rights, and of everything else only [`ALWAYS`] and the
//! calls of [`allowed`] are let through; the rest is answered with EPERM and goes to the kernel's
//! audit log.
//!
//! Invariants: whoever adds a feature that calls something new adds the call here, with its reason
//! (docs/sandbox.md). C libraries differ in the calls they choose, so old and new forms stand
//! together.
//! Not here: io_uring, which no filter sees; the ring itself is restricted (`kernel_io::uring`).

use std::collections::BTreeMap;

use host::{FilterError, RefusalLogging, filter_system_calls};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Seccomp rules by system call: any of them suffices.
type SyscallRules = BTreeMap<c_long, Vec<SeccompRule>>;

/// System calls by name; a comment is about the line below it.
macro_rules! calls {
    ($($(#[$only:meta])? $name:ident)*) => { &[$($(#[$only])? libc::$name),*] };
}

/// What is let through whatever its arguments are.
const ALWAYS: &[&[c_long]] = &[IO, WAITING, MEMORY, FILES, SESSIONS, THREADS, ENDING];

/// Transfers: engines, bells, the log, the signal handler's pipe.
const IO: &[c_long] = calls! {
    SYS_read SYS_readv SYS_pread64 SYS_preadv SYS_preadv2 SYS_write SYS_writev SYS_pwrite64
    SYS_pwritev SYS_pwritev2 SYS_fsync SYS_fdatasync SYS_fallocate SYS_lseek
    // What the page cache holds of a node that becomes active.
    SYS_fadvise64
    SYS_io_submit SYS_io_getevents
    // Of an iothread whose first file with aio=native comes late, and at its end.
    SYS_io_setup SYS_io_destroy
    // What a ring does is restricted by the ring itself; no other ring can be made.
    SYS_io_uring_enter
};

/// Event loops, sessions, locks, clocks.
const WAITING: &[c_long] = calls! {
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    #[cfg(target_arch = "x86_64")] SYS_epoll_wait
    SYS_ppoll
    #[cfg(target_arch = "x86_64")] SYS_poll
    SYS_eventfd2
    // The alarms of sentences that were left out.
    SYS_timerfd_create SYS_timerfd_settime
    SYS_futex SYS_restart_syscall SYS_sched_yield SYS_nanosleep SYS_clock_nanosleep
    SYS_clock_gettime SYS_clock_getres SYS_gettimeofday
    #[cfg(target_arch = "x86_64")] SYS_time
};

/// The allocator and guest memory. Mapping and protecting have conditions.
const MEMORY: &[c_long] = calls! {
    SYS_brk SYS_munmap SYS_mremap SYS_madvise
    // The in-flight region of a session.
    SYS_memfd_create
    SYS_ftruncate SYS_getrandom
};

/// Whatever opens a file.
const OPENING: &[c_long] = calls! {
    SYS_openat
    #[cfg(target_arch = "x86_64")] SYS_open
};

/// Descriptors, and the names of sockets and pidfile at the end.
const FILES: &[c_long] = calls! {
    // Answered with EACCES by the filter before, without a line in the log: C libraries try.
    SYS_openat
    #[cfg(target_arch = "x86_64")] SYS_open
    SYS_close SYS_dup3
    // The standard streams of a daemon in the background.
    #[cfg(target_arch = "x86_64")] SYS_dup2
    SYS_chdir SYS_fstat SYS_fstatfs SYS_newfstatat SYS_statx
    // What kind a descriptor of a front end is.
    SYS_readlinkat
    SYS_unlinkat
    #[cfg(target_arch = "x86_64")] SYS_unlink
};

/// Clients of the sockets that are there, and servers that are connected to.
const SESSIONS: &[c_long] = calls! {
    SYS_accept4 SYS_recvmsg
    // Where a client of the NBD server comes from.
    SYS_getpeername
    // With descriptors: the memory of in-flight regions, everything in a takeover. They are in
    // memory, where a filter cannot look.
    SYS_sendmsg
    SYS_recvfrom SYS_sendto SYS_shutdown
};

/// What opening a file by a command needs besides: where paths lead, and what a block device is like. Landlock says which.
const LOOKING: &[c_long] = calls! {
    SYS_getcwd SYS_getdents64
    #[cfg(target_arch = "x86_64")] SYS_readlink
    #[cfg(target_arch = "x86_64")] SYS_stat
    #[cfg(target_arch = "x86_64")] SYS_lstat
};

/// What making an image or a socket by a command needs besides. Landlock says where. Not `connect`, by which all other
/// daemons of the host could be reached (see [`CONNECTING`]), and no change of modes or owners by path, of which landlock knows nothing.
const MAKING: &[c_long] = calls! {
    SYS_bind SYS_listen SYS_flock
    // A socket gets its mode when it gets its name, less what the umask takes.
    SYS_umask
};

/// What listening on TCP by a command needs besides. Landlock says on which ports.
const LISTENING: &[c_long] = calls! {
    SYS_bind SYS_listen SYS_getsockname
};

/// What connecting to a server needs besides. Where to is in memory: of TCP landlock says on which ports, of UNIX sockets
/// newer kernels say below which directories.
const CONNECTING: &[c_long] = calls! {
    SYS_connect
};

/// The bits of a mode that a command may give: none that lets a program run as somebody else.
const MODE_BITS: u64 = 0o777;

/// The beginning of a thread, its name has a condition, and who it is.
const THREADS: &[c_long] = calls! {
    // Answered with ENOSYS by the filter before.
    SYS_clone3
    SYS_set_robust_list SYS_rseq SYS_set_tid_address SYS_sigaltstack SYS_sched_getaffinity
    SYS_gettid SYS_getpid SYS_getppid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getcpu
    SYS_getrusage SYS_uname SYS_sysinfo SYS_membarrier
};

/// Signals and the end.
const ENDING: &[c_long] = calls! {
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_exit SYS_exit_group
};

/// What nobody calls who serves disks: other programs, other processes, other name spaces, the
/// kernel's own controls.
const HOSTILE: &[c_long] = calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev
    SYS_pidfd_getfd SYS_open_by_handle_at SYS_mount SYS_umount2 SYS_move_mount SYS_open_tree
    SYS_fsopen SYS_fsmount SYS_mount_setattr SYS_pivot_root SYS_chroot SYS_setns SYS_unshare
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_keyctl SYS_add_key SYS_request_key
    SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_kexec_file_load
    SYS_reboot SYS_swapon SYS_swapoff SYS_acct SYS_personality
    #[cfg(target_arch = "x86_64")] SYS_iopl
    #[cfg(target_arch = "x86_64")] SYS_ioperm
    #[cfg(target_arch = "x86_64")] SYS_modify_ldt
};

/// What the process that looks at descriptors does besides what has conditions: it receives, looks, answers and closes.
/// It opens, makes and maps nothing but its own memory and threads.
const DESCRIPTOR_CHECK: &[c_long] = calls! {
    SYS_recvmsg SYS_sendto SYS_write SYS_close SYS_readlinkat
    // With AT_STATX_DONT_SYNC, of files where --memory-files or a dax device is.
    SYS_statx
    SYS_brk SYS_munmap SYS_mremap SYS_madvise SYS_futex SYS_restart_syscall SYS_sched_yield
    SYS_sched_getaffinity SYS_set_robust_list SYS_rseq SYS_sigaltstack SYS_gettid SYS_getpid
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_exit SYS_exit_group
};

/// The flags of a clone that is a thread of this process and of nothing else.
const CLONE_OUTSIDE: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// What fcntl is for: copies, image locks, the seals of guest memory and of in-flight regions. The
/// mode has a condition.
const FCNTL: &[libc::c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    // Of a standard library that looks whether what it closes is open.
    libc::F_GETFD,
    libc::F_GETFL,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// The modes that a descriptor may be given: whether it waits. Not O_ASYNC, which sends signals.
const MODES: libc::c_int = libc::O_ACCMODE | libc::O_NONBLOCK | O_LARGEFILE;

/// Among the flags that the kernel gives, on every 64-bit machine, whatever a C library says.
#[cfg(target_arch = "x86_64")]
const O_LARGEFILE: libc::c_int = 0o100_000;
#[cfg(not(target_arch = "x86_64"))]
const O_LARGEFILE: libc::c_int = 0o400_000;

/// What ioctl is for whatever is served: how much a client has sent.
const FIONREAD: u64 = 0x541b;

/// What ioctl is for where a block device is served (linux/fs.h): discards.
const BLKDISCARD: u64 = 0x1277;

/// What a block device is asked that a command opens (linux/fs.h): BLKSSZGET, BLKPBSZGET.
const BLOCK_SIZES: [u64; 2] = [0x1268, 0x127b];

/// What a connection is asked: who is at its other end, a hold on it (SO_PEERPIDFD), and of what kind a descriptor is.
const ASKED_OF_SOCKETS: [libc::c_int; 4] =
    [libc::SO_PEERCRED, libc::SO_PEERPIDFD, libc::SO_DOMAIN, libc::SO_TYPE];

/// What a connection is told: that urgent data lie among all other (SO_OOBINLINE), and how long to wait for a process that
/// takes over, in both forms of linux/socket.h.
const TOLD_TO_SOCKETS: [u64; 3] = [10, 21, 67];

/// What a socket is asked that was not connected at once: SO_ERROR.
const ASKED_OF_CONNECTING: [libc::c_int; 1] = [libc::SO_ERROR];

/// What a listener or a connection of TCP is told: SO_REUSEADDR, SO_KEEPALIVE; TCP_NODELAY is of another level.
const TOLD_TO_TCP: [u64; 2] = [2, 9];

/// What a ring is told: its table of files (IORING_UNREGISTER_FILES, IORING_REGISTER_FILES_UPDATE), and that a spare one
/// begins, as restricted as it was made (IORING_REGISTER_ENABLE_RINGS).
const REGISTERED: [u64; 3] = [3, 6, 12];

/// What the seccomp filters depend on.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each opens calls that have nothing to do with each other"
)]
pub(super) struct FilterNeeds {
    /// Whether files are opened again later, as landlock lets them.
    pub(super) opening: bool,
    /// Whether commands make files and sockets.
    pub(super) makes: bool,
    /// Whether a block device is written.
    pub(super) discards: bool,
    /// Whether the kernel gives a hold on other processes by their ids only.
    pub(super) ids: bool,
    /// Whether commands listen on TCP; landlock says on which ports.
    pub(super) listens: bool,
    /// Whether servers are connected to by TCP; landlock says on which ports.
    pub(super) connects: bool,
    /// Whether servers are connected to by UNIX sockets.
    pub(super) connects_unix: bool,
}

impl FilterNeeds {
    fn uses_tcp(self) -> bool {
        self.listens || self.connects
    }
}

/// The compiled seccomp filters of the process.
#[derive(Debug)]
pub(super) struct SeccompFilters {
    // In this order: the last one does not let any other be put up.
    programs: Vec<(BpfProgram, RefusalLogging)>,
}

/// The seccomp filters could not be made or installed.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// Nobody has made a filter for this machine.
    #[error("there is no filter of system calls for {}", std::env::consts::ARCH)]
    Machine(#[source] seccompiler::BackendError),
    /// The rules do not make a filter.
    #[error("the filter of system calls cannot be made")]
    Filter(#[source] seccompiler::BackendError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] FilterError),
}

impl SeccompFilters {
    /// Makes the filters for this process; nothing is fenced yet.
    pub(super) fn new(needs: FilterNeeds) -> Result<Self, SeccompError> {
        let machine = std::env::consts::ARCH.try_into().map_err(SeccompError::Machine)?;
        let hostile = hostile(needs).map_err(SeccompError::Filter)?;
        let old = [(libc::SYS_clone3, Vec::new())].into();
        let allowed = allowed(std::process::id(), needs).map_err(SeccompError::Filter)?;
        let errno = |number: libc::c_int| SeccompAction::Errno(number.cast_unsigned());
        let let_through = || SeccompAction::Allow;
        let mut programs = vec![
            (
                program(hostile, let_through(), SeccompAction::KillProcess, machine)?,
                RefusalLogging::Logged,
            ),
            // Its flags are in memory, where a filter does not see them; `clone` does the same. Each
            // new thread tries.
            (program(old, let_through(), errno(libc::ENOSYS), machine)?, RefusalLogging::Silent),
        ];
        if !needs.opening {
            let opening = OPENING.iter().map(|call| (*call, Vec::new())).collect();
            let opening = program(opening, let_through(), errno(libc::EACCES), machine)?;
            programs.push((opening, RefusalLogging::Silent));
        }
        let allowed = program(allowed, errno(libc::EPERM), let_through(), machine)?;
        programs.push((allowed, RefusalLogging::Logged));
        Ok(Self { programs })
    }

    /// Makes the filters for this process if it is the one that looks at descriptors; nothing is fenced yet.
    pub(super) fn of_descriptor_check() -> Result<Self, SeccompError> {
        let machine = std::env::consts::ARCH.try_into().map_err(SeccompError::Machine)?;
        let always = DESCRIPTOR_CHECK.iter().map(|call| (*call, Vec::new()));
        let mut allowed: SyscallRules = always.collect();
        let own = memory_and_threads(std::process::id()).map_err(SeccompError::Filter)?;
        allowed.extend(own);
        let seals = [libc::F_GETFD, libc::F_GET_SEALS].map(|it| u64::from(it.unsigned_abs()));
        let seals = any_of(1, seals.into_iter()).map_err(SeccompError::Filter)?;
        let domain = u64::from(libc::SO_DOMAIN.unsigned_abs());
        let domain = when(2, SeccompCmpOp::Eq, domain).map_err(SeccompError::Filter)?;
        allowed.extend([(libc::SYS_fcntl, seals), (libc::SYS_getsockopt, domain)]);
        let old = [(libc::SYS_clone3, Vec::new())].into();
        let errno = |number: libc::c_int| SeccompAction::Errno(number.cast_unsigned());
        let old = program(old, SeccompAction::Allow, errno(libc::ENOSYS), machine)?;
        // The call that the filter before has answered has to pass this one.
        allowed.insert(libc::SYS_clone3, Vec::new());
        let allowed = program(allowed, errno(libc::EPERM), SeccompAction::Allow, machine)?;
        Ok(Self {
            programs: vec![(old, RefusalLogging::Silent), (allowed, RefusalLogging::Logged)],
        })
    }

    /// Puts the fence up for all threads, now and later.
    pub(super) fn put_up(&self) -> Result<(), SeccompError> {
        for (program, refusals) in &self.programs {
            let instructions: Vec<libc::sock_filter> = program
                .iter()
                .map(|it| libc::sock_filter { code: it.code, jt: it.jt, jf: it.jf, k: it.k })
                .collect();
            filter_system_calls(&instructions, *refusals)?;
        }
        Ok(())
    }
}

fn program(
    rules: SyscallRules,
    others: SeccompAction,
    these: SeccompAction,
    machine: TargetArch,
) -> Result<BpfProgram, SeccompError> {
    let filter = SeccompFilter::new(rules, others, these, machine).map_err(SeccompError::Filter)?;
    filter.try_into().map_err(SeccompError::Filter)
}

fn hostile(needs: FilterNeeds) -> Result<SyscallRules, seccompiler::BackendError> {
    let mut rules: SyscallRules = HOSTILE.iter().map(|call| (*call, Vec::new())).collect();
    let elsewhere = families(needs).map(|family| condition(0, SeccompCmpOp::Ne, family));
    let elsewhere = elsewhere.collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(elsewhere)?]);
    Ok(rules)
}

/// The families of the sockets that may be made, if any are.
fn families(needs: FilterNeeds) -> impl Iterator<Item = u64> {
    let inet = [libc::AF_INET, libc::AF_INET6].into_iter().filter(move |_| needs.uses_tcp());
    [libc::AF_UNIX].into_iter().chain(inet).map(|family| u64::from(family.unsigned_abs()))
}

fn allowed(process: u32, needs: FilterNeeds) -> Result<SyscallRules, seccompiler::BackendError> {
    let always = ALWAYS.iter().copied().flatten();
    let mut rules: SyscallRules = always.map(|call| (*call, Vec::new())).collect();
    rules.extend(memory_and_threads(process)?);
    rules.extend(other_processes(needs)?);
    rules.extend(descriptors(needs)?);
    rules.extend(sockets(needs)?);
    if needs.opening {
        rules.extend(LOOKING.iter().map(|call| (*call, Vec::new())));
    }
    if needs.makes {
        rules.extend(MAKING.iter().map(|call| (*call, Vec::new())));
        // The rights of a socket, before it has a name.
        let others = u64::from(u32::MAX) & !MODE_BITS;
        rules.insert(libc::SYS_fchmod, when(1, SeccompCmpOp::MaskedEq(others), 0)?);
    }
    if needs.listens {
        rules.extend(LISTENING.iter().map(|call| (*call, Vec::new())));
    }
    if needs.connects || needs.connects_unix {
        rules.extend(CONNECTING.iter().map(|call| (*call, Vec::new())));
    }
    let unix = needs.makes || needs.connects_unix;
    if unix || needs.uses_tcp() {
        // Of another family it ends the process, by the filter before.
        rules.insert(libc::SYS_socket, stream_sockets(needs, unix)?);
    }
    Ok(rules)
}

/// Nothing becomes code, no process is made, and no limit is set.
fn memory_and_threads(process: u32) -> Result<SyscallRules, seccompiler::BackendError> {
    // Nothing becomes code that was not code when the program was loaded.
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    let no_code = |argument| when(argument, SeccompCmpOp::MaskedEq(executable), 0);
    // Threads of aio=threads; no process, no name space.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let looked_at = thread | u64::from(CLONE_OUTSIDE.cast_unsigned());
    let name = u64::from(libc::PR_SET_NAME.unsigned_abs());
    // The limits of this process are read, to place a thread's stack, and not set.
    let own_limits = vec![condition(0, SeccompCmpOp::Eq, 0)?, is_null(2)?];
    Ok(SyscallRules::from([
        (libc::SYS_mmap, no_code(2)?),
        (libc::SYS_mprotect, no_code(2)?),
        (libc::SYS_clone, when(0, SeccompCmpOp::MaskedEq(looked_at), thread)?),
        // A panic's end, and the end of interrupts that a client holds up: of this process only.
        (libc::SYS_tgkill, when(0, SeccompCmpOp::Eq, process.into())?),
        (libc::SYS_prctl, when(0, SeccompCmpOp::Eq, name)?),
        (libc::SYS_prlimit64, vec![SeccompRule::new(own_limits)?]),
    ]))
}

/// A process that takes over and hangs is ended by this one, which then goes on. It is held by the
/// connection to it.
fn other_processes(needs: FilterNeeds) -> Result<SyscallRules, seccompiler::BackendError> {
    let end = SeccompRule::new(vec![
        condition(1, SeccompCmpOp::Eq, u64::from(libc::SIGKILL.unsigned_abs()))?,
        // One process and not its group; nothing goes with the signal.
        is_null(2)?,
        condition(3, SeccompCmpOp::Eq, 0)?,
    ])?;
    let mut rules = SyscallRules::from([(libc::SYS_pidfd_send_signal, vec![end])]);
    if needs.ids {
        rules.insert(libc::SYS_pidfd_open, when(1, SeccompCmpOp::Eq, 0)?);
    }
    Ok(rules)
}

fn descriptors(needs: FilterNeeds) -> Result<SyscallRules, seccompiler::BackendError> {
    let mut fcntl = any_of(1, FCNTL.iter().map(|command| u64::from(command.unsigned_abs())))?;
    let mode = condition(1, SeccompCmpOp::Eq, u64::from(libc::F_SETFL.unsigned_abs()))?;
    let others = u64::from((!MODES).cast_unsigned());
    let only = condition(2, SeccompCmpOp::MaskedEq(others), 0)?;
    fcntl.push(SeccompRule::new(vec![mode, only])?);
    let ioctl = [FIONREAD].into_iter().chain(needs.discards.then_some(BLKDISCARD));
    let ioctl = ioctl.chain(BLOCK_SIZES.into_iter().filter(|_| needs.opening));
    Ok(SyscallRules::from([
        (libc::SYS_fcntl, fcntl),
        (libc::SYS_ioctl, any_of(1, ioctl)?),
        (libc::SYS_io_uring_register, any_of(1, REGISTERED.into_iter())?),
    ]))
}

/// Sockets for streams: UNIX ones where files are made or such a server is connected to, those of TCP where commands listen
/// or such a server is.
fn stream_sockets(
    needs: FilterNeeds,
    unix: bool,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let is_made = |family: &u64| unix || *family != u64::from(libc::AF_UNIX.unsigned_abs());
    let flags = u64::from((libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).unsigned_abs());
    let kind = SeccompCmpOp::MaskedEq(u64::from(u32::MAX) & !flags);
    let stream = u64::from(libc::SOCK_STREAM.unsigned_abs());
    let rule = |family| {
        SeccompRule::new(vec![
            condition(0, SeccompCmpOp::Eq, family)?,
            condition(1, kind.clone(), stream)?,
        ])
    };
    families(needs).filter(is_made).map(rule).collect()
}

fn sockets(needs: FilterNeeds) -> Result<SyscallRules, seccompiler::BackendError> {
    let level = u64::from(libc::SOL_SOCKET.unsigned_abs());
    let option = |number| {
        SeccompRule::new(vec![
            condition(1, SeccompCmpOp::Eq, level)?,
            condition(2, SeccompCmpOp::Eq, number)?,
        ])
    };
    let connects = needs.connects || needs.connects_unix;
    let asked = ASKED_OF_SOCKETS.iter().chain(ASKED_OF_CONNECTING.iter().filter(|_| connects));
    let asked = asked.map(|number| option(number.unsigned_abs().into()));
    let told =
        TOLD_TO_SOCKETS.into_iter().chain(TOLD_TO_TCP.into_iter().filter(|_| needs.uses_tcp()));
    let mut told = told.map(option).collect::<Result<Vec<_>, _>>()?;
    if needs.uses_tcp() {
        told.push(SeccompRule::new(vec![
            condition(1, SeccompCmpOp::Eq, u64::from(libc::IPPROTO_TCP.unsigned_abs()))?,
            condition(2, SeccompCmpOp::Eq, u64::from(libc::TCP_NODELAY.unsigned_abs()))?,
        ])?);
    }
    Ok(SyscallRules::from([
        (libc::SYS_getsockopt, asked.collect::<Result<_, _>>()?),
        (libc::SYS_setsockopt, told),
    ]))
}

/// An address, of which a comparison of numbers would see one half.
fn is_null(argument: u8) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn when(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    Ok(vec![SeccompRule::new(vec![condition(argument, operator, value)?])?])
}

fn any_of(
    argument: u8,
    values: impl Iterator<Item = u64>,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |value| SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, value)?]);
    values.map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: FilterNeeds = FilterNeeds {
        opening: true,
        makes: true,
        discards: true,
        ids: true,
        listens: true,
        connects: true,
        connects_unix: true,
    };

    #[test]
    fn no_call_is_both_hostile_and_let_through() {
        let allowed = allowed(1, ALL).unwrap();
        for call in HOSTILE {
            assert!(!allowed.contains_key(call), "system call {call}");
        }
    }

    #[test]
    fn the_filters_can_be_made_and_fit_the_kernel() {
        let fence = SeccompFilters::new(ALL).unwrap();
        for (program, _) in &fence.programs {
            // BPF_MAXINSNS
            assert!(program.len() <= 4096, "{} instructions", program.len());
        }
    }
}
