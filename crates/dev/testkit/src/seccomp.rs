//! A host that lacks or forbids something, for one child process: a seccomp filter that answers one
//! system call, or two of its commands, with an error, as container runtimes do.

#![expect(unsafe_code, reason = "a filter is installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a filter reads first: `struct seccomp_data` starts with the number of the system call.
const NUMBER_OFFSET: u32 = 0;

/// Where the low half of the second argument is, on little-endian machines.
const SECOND_ARGUMENT_OFFSET: u32 = 24;

/// A system call and the error that it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    call: u32,
    errno: u32,
    /// The second arguments that are denied; all, if there are none.
    commands: Option<[u32; 2]>,
}

impl Denied {
    /// As the profiles of container runtimes do.
    pub(crate) const IO_URING: Self = Self::all(libc::SYS_io_uring_setup, libc::EPERM);
    /// As a kernel that was built without.
    pub(crate) const LANDLOCK: Self = Self::all(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
    /// As a kernel that was built without.
    pub(crate) const SECCOMP: Self = Self::all(libc::SYS_seccomp, libc::ENOSYS);
    /// As kernels before 5.9.
    pub(crate) const CLOSE_RANGE: Self = Self::all(libc::SYS_close_range, libc::ENOSYS);
    /// As kernels before 3.15: no locks of open file descriptions.
    pub(crate) const LOCKS: Self = Self {
        commands: Some([libc::F_OFD_SETLK.unsigned_abs(), libc::F_OFD_GETLK.unsigned_abs()]),
        ..Self::all(libc::SYS_fcntl, libc::EINVAL)
    };

    const fn all(call: libc::c_long, errno: libc::c_int) -> Self {
        Self { call: number(call), errno: errno.unsigned_abs(), commands: None }
    }
}

/// Has the child refused this.
pub(crate) fn deny(command: &mut Command, denied: Denied) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; `install` makes two
    // system calls and allocates nothing.
    unsafe { command.pre_exec(move || install(denied)) };
}

fn install(denied: Denied) -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let refusal = libc::SECCOMP_RET_ERRNO | denied.errno;
    // How many instructions to skip from the comparison of the number: to those of the command, or
    // to the refusal.
    let (to_commands, [first, second]) = match denied.commands {
        Some(commands) => (0, commands),
        None => (3, [0, 0]),
    };
    let mut filter = [
        instruction(load, 0, 0, NUMBER_OFFSET),
        instruction(equal, to_commands, 4, denied.call),
        instruction(load, 0, 0, SECOND_ARGUMENT_OFFSET),
        instruction(equal, 1, 0, first),
        instruction(equal, 0, 1, second),
        instruction(answer, 0, 0, refusal),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 7, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the program and its instructions live until the call returns; the kernel copies them.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn instruction(code: u32, if_true: u8, if_false: u8, operand: u32) -> libc::sock_filter {
    let code = u16::try_from(code).expect("codes have 16 bits");
    libc::sock_filter { code, jt: if_true, jf: if_false, k: operand }
}

#[expect(clippy::cast_possible_truncation, reason = "numbers of system calls are small")]
#[expect(clippy::cast_sign_loss, reason = "and positive")]
const fn number(call: libc::c_long) -> u32 {
    call as u32
}
