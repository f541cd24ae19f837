//! A host that lacks or forbids something, for one child process: a seccomp filter that answers one
//! system call with an error, as container runtimes do.

#![expect(unsafe_code, reason = "a filter is installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a filter reads first: `struct seccomp_data` starts with the number of the system call.
const NUMBER_OFFSET: u32 = 0;

/// A system call and the error that it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    call: u32,
    errno: u32,
}

impl Denied {
    /// As the profiles of container runtimes do.
    pub(crate) const IO_URING: Self =
        Self { call: number(libc::SYS_io_uring_setup), errno: libc::EPERM.unsigned_abs() };
    /// As a kernel that was built without.
    pub(crate) const LANDLOCK: Self = Self {
        call: number(libc::SYS_landlock_create_ruleset),
        errno: libc::ENOSYS.unsigned_abs(),
    };
    /// As a kernel that was built without.
    pub(crate) const SECCOMP: Self =
        Self { call: number(libc::SYS_seccomp), errno: libc::ENOSYS.unsigned_abs() };
}

/// Has the child refused this.
pub(crate) fn deny(command: &mut Command, denied: Denied) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; `install` makes two
    // system calls and allocates nothing.
    unsafe { command.pre_exec(move || install(denied)) };
}

fn install(denied: Denied) -> io::Result<()> {
    let refusal = libc::SECCOMP_RET_ERRNO | denied.errno;
    let denied = denied.call;
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER_OFFSET),
        // Equal: go on; otherwise skip one.
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, denied),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
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
