//! A host that forbids io_uring, for one child process: a seccomp filter that answers
//! io_uring_setup with EPERM, as container runtimes do.

#![expect(unsafe_code, reason = "a filter is installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a filter reads first: `struct seccomp_data` starts with the number of the system call.
const NUMBER_OFFSET: u32 = 0;

/// Has the child refused every io_uring.
pub(crate) fn deny_io_uring(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; `install` makes two
    // system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
}

fn install() -> io::Result<()> {
    let denied = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
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
