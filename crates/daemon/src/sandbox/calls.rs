//! The fence around system calls: which ones the daemon makes once it serves.
//!
//! Three filters, because one knows two verdicts: what only an attacker would call ends the
//! process, what has a substitute is answered with ENOSYS so that the C library takes that, and
//! of everything else only [`ALWAYS`] and the calls of [`sometimes`] are let through; the rest is
//! answered with EPERM and goes to the kernel's audit log.
//!
//! Invariants: whoever adds a feature that calls something new adds the call here, with its reason
//! (docs/sandbox.md). C libraries differ in the calls they choose, so old and new forms stand
//! together.
//! Not here: io_uring, which no filter sees; the ring itself is restricted (`kernel_io::uring`).

use std::collections::BTreeMap;

use kernel_io::{FilterError, Refusals, filter_system_calls};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// A number that a call's argument may have, and the rules for a call: any of them suffices.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// What is let through whatever its arguments are.
const ALWAYS: &[&[c_long]] = &[IO, WAITING, MEMORY, FILES, SESSIONS, THREADS, ENDING];

/// Transfers: engines, bells, the log, the signal handler's pipe.
const IO: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_lseek,
    // What the page cache holds of a node that becomes active.
    libc::SYS_fadvise64,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    // Of an iothread whose first file with aio=native comes late, and at its end.
    libc::SYS_io_setup,
    libc::SYS_io_destroy,
    libc::SYS_io_uring_enter,
    // Restricted by the rings themselves; no other ring can be made.
    libc::SYS_io_uring_register,
];

/// Event loops, sessions, locks, clocks.
const WAITING: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_eventfd2,
    // The alarms of sentences that were left out.
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// The allocator and guest memory. Mapping and protecting have conditions.
const MEMORY: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // The in-flight region of a session.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_getrandom,
];

/// Names and descriptors. Landlock decides which files.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    libc::SYS_flock,
    // Sockets and the pidfile, at the end.
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Clients of the sockets that are there. New sockets are not made.
const SESSIONS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

/// The beginning of a thread, its name has a condition, and who it is.
const THREADS: &[c_long] = &[
    // Answered with ENOSYS by the filter before.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_membarrier,
];

/// Signals and the end.
const ENDING: &[c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// What nobody calls who serves disks: other programs, other processes, other name spaces, the
/// kernel's own controls.
const HOSTILE: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// The flags of a clone that is a thread of this process and of nothing else.
const CLONE_OUTSIDE: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// What fcntl is for: copies, modes, image locks, the seals of guest memory.
const FCNTL: &[libc::c_int] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// What ioctl is for (linux/fs.h): sizes and blocks of devices, discard, zeroing; and the mode of
/// sockets.
const IOCTL: &[u64] = &[
    0x1268,      // BLKSSZGET
    0x127b,      // BLKPBSZGET
    0x8008_1272, // BLKGETSIZE64
    0x1277,      // BLKDISCARD
    0x127f,      // BLKZEROOUT
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x5421,      // FIONBIO
    0x541b,      // FIONREAD
];

/// The filters, ready to be put up.
#[derive(Debug)]
pub(super) struct CallsFence {
    // In this order: the last one does not let any other be put up.
    programs: [(BpfProgram, Refusals); 3],
}

/// The fence cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
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

impl CallsFence {
    /// Makes the filters for this process; nothing is fenced yet.
    pub(super) fn new() -> Result<Self, CallsError> {
        let machine = std::env::consts::ARCH.try_into().map_err(CallsError::Machine)?;
        let hostile = hostile().map_err(CallsError::Filter)?;
        let old = [(libc::SYS_clone3, Vec::new())].into();
        let allowed = allowed(std::process::id()).map_err(CallsError::Filter)?;
        let errno = |number: libc::c_int| SeccompAction::Errno(number.cast_unsigned());
        let let_through = SeccompAction::Allow;
        Ok(Self {
            programs: [
                (
                    program(hostile, let_through.clone(), SeccompAction::KillProcess, machine)?,
                    Refusals::Logged,
                ),
                // Its flags are in memory, where a filter does not see them; `clone` does the same.
                // Each new thread tries.
                (
                    program(old, let_through.clone(), errno(libc::ENOSYS), machine)?,
                    Refusals::Silent,
                ),
                (program(allowed, errno(libc::EPERM), let_through, machine)?, Refusals::Logged),
            ],
        })
    }

    /// Puts the fence up for all threads, now and later.
    pub(super) fn put_up(&self) -> Result<(), CallsError> {
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
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
    machine: TargetArch,
) -> Result<BpfProgram, CallsError> {
    let filter = SeccompFilter::new(rules, others, these, machine).map_err(CallsError::Filter)?;
    filter.try_into().map_err(CallsError::Filter)
}

fn hostile() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = HOSTILE.iter().map(|call| (*call, Vec::new())).collect();
    let family = libc::AF_UNIX.unsigned_abs().into();
    let elsewhere = condition(0, SeccompCmpOp::Ne, family)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![elsewhere])?]);
    Ok(rules)
}

fn allowed(process: u32) -> Result<Rules, seccompiler::BackendError> {
    let always = ALWAYS.iter().copied().flatten();
    let mut rules: Rules = always.map(|call| (*call, Vec::new())).collect();
    sometimes(process, &mut rules)?;
    Ok(rules)
}

/// Calls that are let through with some arguments only.
fn sometimes(process: u32, rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    // Nothing becomes code that was not code when the program was loaded.
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    let no_code = |argument| -> Result<_, seccompiler::BackendError> {
        let plain = condition(argument, SeccompCmpOp::MaskedEq(executable), 0)?;
        Ok(vec![SeccompRule::new(vec![plain])?])
    };
    rules.insert(libc::SYS_mmap, no_code(2)?);
    rules.insert(libc::SYS_mprotect, no_code(2)?);
    // Threads of aio=threads; no process, no name space.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let looked_at = thread | u64::from(CLONE_OUTSIDE.cast_unsigned());
    rules.insert(libc::SYS_clone, when(0, SeccompCmpOp::MaskedEq(looked_at), thread)?);
    // A panic's end, of this process only.
    rules.insert(libc::SYS_tgkill, when(0, SeccompCmpOp::Eq, process.into())?);
    // A process that takes over and hangs is watched and ended by this one, which then goes on.
    rules.insert(libc::SYS_pidfd_open, when(1, SeccompCmpOp::Eq, 0)?);
    let end = [libc::SIGKILL, 0].map(i32::unsigned_abs).map(end_by_descriptor);
    rules.insert(libc::SYS_pidfd_send_signal, end.into_iter().collect::<Result<_, _>>()?);
    let name = u64::from(libc::PR_SET_NAME.unsigned_abs());
    rules.insert(libc::SYS_prctl, when(0, SeccompCmpOp::Eq, name)?);
    let fcntl = FCNTL.iter().map(|command| u64::from(command.unsigned_abs()));
    rules.insert(libc::SYS_fcntl, any_of(1, fcntl)?);
    rules.insert(libc::SYS_ioctl, any_of(1, IOCTL.iter().copied())?);
    // The limits of this process are read, to place a thread's stack, and not set. An address has
    // two halves, and a filter compares either.
    let own = condition(0, SeccompCmpOp::Eq, 0)?;
    let none = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![own, none])?]);
    Ok(())
}

/// The signal goes to one process, not to its group, and carries nothing.
fn end_by_descriptor(signal: u32) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![
        condition(1, SeccompCmpOp::Eq, signal.into())?,
        SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?,
        condition(3, SeccompCmpOp::Eq, 0)?,
    ])
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

    #[test]
    fn no_call_is_both_hostile_and_let_through() {
        let allowed = allowed(1).unwrap();
        for call in HOSTILE {
            assert!(!allowed.contains_key(call), "system call {call}");
        }
    }

    #[test]
    fn the_filters_can_be_made_and_fit_the_kernel() {
        let fence = CallsFence::new().unwrap();
        for (program, _) in &fence.programs {
            // BPF_MAXINSNS
            assert!(program.len() <= 4096, "{} instructions", program.len());
        }
    }
}
