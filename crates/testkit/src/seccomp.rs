//! A host that forbids something, for one child process: a seccomp filter that answers
//! io_uring_setup with EPERM, as container runtimes do, or locks of open file descriptions with
//! EINVAL, as kernels before 3.15 do.

#![expect(unsafe_code, reason = "a filter is installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a filter reads first: `struct seccomp_data` starts with the number of the system call.
const NUMBER_OFFSET: u32 = 0;

/// Where the low half of the second argument is, on little-endian machines.
const SECOND_ARGUMENT_OFFSET: u32 = 24;

/// Has the child refused every io_uring.
pub(crate) fn deny_io_uring(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes
    // two system calls and allocates nothing.
    unsafe { command.pre_exec(|| install(&mut io_uring_filter())) };
}

/// Has the child refused every lock of an open file description.
pub(crate) fn deny_locks(command: &mut Command) {
    // SAFETY: as for io_uring.
    unsafe { command.pre_exec(|| install(&mut lock_filter())) };
}

fn io_uring_filter() -> [libc::sock_filter; 4] {
    let denied = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    [
        load(NUMBER_OFFSET),
        // Equal: go on; otherwise skip one.
        jump_unless_equal(1, denied),
        answer(refuse_with(libc::EPERM)),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn lock_filter() -> [libc::sock_filter; 8] {
    let fcntl = u32::try_from(libc::SYS_fcntl).expect("a small number");
    let is = |command: libc::c_int| {
        let skip_unless = jump_unless_equal(1, command.unsigned_abs());
        [skip_unless, answer(refuse_with(libc::EINVAL))]
    };
    let ([set, refuse_set], [get, refuse_get]) = (is(libc::F_OFD_SETLK), is(libc::F_OFD_GETLK));
    [
        load(NUMBER_OFFSET),
        jump_unless_equal(5, fcntl),
        load(SECOND_ARGUMENT_OFFSET),
        set,
        refuse_set,
        get,
        refuse_get,
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(filter.len()).expect("a filter is short");
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
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

fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn jump_unless_equal(skip: u8, value: u32) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value)
}

fn answer(with: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, with)
}

fn refuse_with(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

fn instruction(code: u32, if_true: u8, if_false: u8, operand: u32) -> libc::sock_filter {
    let code = u16::try_from(code).expect("codes have 16 bits");
    libc::sock_filter { code, jt: if_true, jf: if_false, k: operand }
}
