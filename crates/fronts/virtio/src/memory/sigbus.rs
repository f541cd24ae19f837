//! What happens when guest memory is touched that is no longer there.
//!
//! Where it stands in the life of a request: beside it. A front end that truncates the file behind
//! a region makes the kernel answer the next access with SIGBUS, and so does memory that the host finds
//! broken (a machine check). The handler puts zeroes there,
//! marks the region, and lets the access happen again; the ring that sees the mark
//! (`GuestMemory::is_lost`) is served no further. The zeroes can be read but not written, by the kernel neither,
//! which fails such requests. A write of this process raises SIGSEGV, and a window is opened for it.
//!
//! Invariants: a fault outside our regions goes to whoever handled its signal before. Threads: the handler runs on the
//! thread that touched the memory, and does only what is allowed in a signal handler: atomics and system calls. Limits:
//! a file is cut at its end, so all of the region behind the address is replaced at once. However many pages are
//! touched, a region falls into ten mappings at most: page by page, a client could use up the mappings that the process
//! may have. What is written in place of lost memory is the process's own: `WINDOWS` windows of `WINDOW_BYTES` for each
//! region, 256 KiB. Requests that were popped before the loss was seen may write gigabytes there; each window is given
//! back for the next one.

#![expect(unsafe_code, reason = "handles a signal and puts a mapping in place of a lost one")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libc::{sigaction, siginfo_t};

use super::sigbus_table::{self, MappingTail, WritableWindow};

/// The memory is there and may not be accessed like that (asm-generic/siginfo.h); the crate `libc` lacks it.
const SEGV_ACCERR: c_int = 2;

/// A signal handler without SA_SIGINFO.
type PlainHandler = extern "C" fn(c_int);
/// A signal handler with SA_SIGINFO.
type DetailedHandler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Who handled these signals before. Stored before the handler is installed, so that it finds them.
static PREVIOUS: [(c_int, OnceLock<PreviousHandler>); 2] =
    [(libc::SIGBUS, OnceLock::new()), (libc::SIGSEGV, OnceLock::new())];

/// What handled the signal before this handler was installed.
#[derive(Debug, Clone, Copy)]
enum PreviousHandler {
    Default,
    Ignored,
    Plain(PlainHandler),
    Detailed(DetailedHandler),
}

/// Installs the handler, for the whole process. Until then, and in other processes, the loss of
/// guest memory is deadly. May be called again, which changes nothing.
pub fn catch_lost_memory() -> io::Result<()> {
    PREVIOUS.iter().try_for_each(|(signal, previous)| catch(*signal, previous))
}

fn catch(signal: c_int, previous: &OnceLock<PreviousHandler>) -> io::Result<()> {
    let ours: DetailedHandler = on_fault;
    let ours = ours as *const () as libc::sighandler_t;
    let found = current_action(signal)?;
    if found.sa_sigaction == ours {
        return Ok(());
    }
    // Two first calls at a time find the same; it does not matter whose is kept.
    previous.get_or_init(|| PreviousHandler::of(&found));
    let mut action = found;
    action.sa_sigaction = ours;
    // On the alternative stack, where there is one, as the handler of Rust's runtime expects.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `sigemptyset` needs a writable set; `action` is ours.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: `sigaction` reads a whole action (copied from the present one, then changed) and
    // stores none for null. The handler has the signature that SA_SIGINFO asks for, lives for
    // ever, and does only what is safe in a signal handler.
    match unsafe { sigaction(signal, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current_action(signal: c_int) -> io::Result<sigaction> {
    let mut found = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: `sigaction` changes nothing for a null action and fills the writable one behind it.
    if unsafe { sigaction(signal, std::ptr::null(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has filled the action.
    Ok(unsafe { found.assume_init() })
}

impl PreviousHandler {
    fn of(action: &sigaction) -> Self {
        match action.sa_sigaction {
            libc::SIG_DFL => Self::Default,
            libc::SIG_IGN => Self::Ignored,
            handler if action.sa_flags & libc::SA_SIGINFO == 0 => {
                // SAFETY: an action that is neither default nor ignored holds the address of a
                // function, which without SA_SIGINFO takes the signal's number only.
                Self::Plain(unsafe { std::mem::transmute::<usize, PlainHandler>(handler) })
            }
            handler => {
                // SAFETY: as above; with SA_SIGINFO the function takes all three arguments.
                Self::Detailed(unsafe { std::mem::transmute::<usize, DetailedHandler>(handler) })
            }
        }
    }
}

/// The handler.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a whole description, valid until the handler
    // returns, which nobody else changes.
    let about = unsafe { &*info };
    let is_done = match (signal, about.si_code) {
        (libc::SIGBUS, libc::BUS_ADRERR | libc::BUS_MCEERR_AR) => {
            place(about).is_some_and(|(_, tail)| replace(&tail))
        }
        // A page was found broken that nobody reads just now. Whoever does gets the signal above.
        (libc::SIGBUS, libc::BUS_MCEERR_AO) => place(about).is_some(),
        (libc::SIGSEGV, SEGV_ACCERR) => place(about).is_some_and(|(address, tail)| {
            tail.move_window(address, |window| open(&window, &tail), |window| close(&window))
        }),
        _ => false,
    };
    if !is_done {
        pass_on(signal, info, context);
    }
}

/// The address of a fault, and the region that it was in from its page on.
fn place(about: &siginfo_t) -> Option<(usize, MappingTail)> {
    // SAFETY: a signal that the kernel sends for an access carries its address.
    let address = unsafe { about.si_addr() };
    sigbus_table::find(address.addr()).map(|tail| (address.addr(), tail))
}

/// Puts zeroes where the memory was. `false` if the kernel has no room for them.
fn replace(tail: &MappingTail) -> bool {
    tail.mark_lost();
    // SAFETY: MAP_FIXED replaces what is mapped in the range. The range is the end of a region
    // that is mapped (its watch is dropped before it is unmapped, and the thread that was
    // interrupted uses it, so neither happens now) and that only promises bytes which may change
    // at any time. It starts and ends at a page, a huge one where the region has those.
    let mapped = keep_errno(|| unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(tail.start),
            tail.bytes,
            libc::PROT_READ,
            libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE,
            -1,
            0,
        )
    });
    mapped != libc::MAP_FAILED
}

/// Lets a part of the zeroes be written; all of them, if the process has no room for one more mapping.
fn open(window: &WritableWindow, tail: &MappingTail) -> bool {
    let is_open = |start, bytes| protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE);
    is_open(window.start, window.bytes) || is_open(tail.start, tail.bytes)
}

/// Gives back what was written there, for which nobody asks any more.
fn close(window: &WritableWindow) {
    if protect(window.start, window.bytes, libc::PROT_READ) {
        let start = std::ptr::with_exposed_provenance_mut(window.start);
        // SAFETY: the range is one of our own zeroes, as in `replace`, which MADV_DONTNEED makes zeroes again.
        // A failure costs memory, up to the end of the session.
        let _given_back =
            keep_errno(|| unsafe { libc::madvise(start, window.bytes, libc::MADV_DONTNEED) });
    }
}

fn protect(start: usize, bytes: usize, rights: c_int) -> bool {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range lies in a lost region, for which the same holds as in `replace`; its memory is our own
    // zeroes, and whoever uses it may read and write in any case.
    keep_errno(|| unsafe { libc::mprotect(start, bytes, rights) }) == 0
}

/// The interrupted code may be about to look at its errno.
fn keep_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the function has no duties; every thread has an errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own, aligned and initialised.
    let errno = unsafe { place.read() };
    let result = call();
    // SAFETY: as for the read.
    unsafe { place.write(errno) };
    result
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: as in `on_fault`, which passes on what the kernel gave it.
    let code = unsafe { (*info).si_code };
    // Codes up to 0 are those of other processes (and of this one, by `raise`): no access failed.
    let is_sent = code <= 0;
    let mut previous = PREVIOUS.iter().filter(|(of, _)| *of == signal);
    let previous = previous.next().and_then(|(_, previous)| previous.get());
    match previous.copied().unwrap_or(PreviousHandler::Default) {
        PreviousHandler::Plain(handler) => handler(signal),
        PreviousHandler::Detailed(handler) => handler(signal, info, context),
        PreviousHandler::Ignored if is_sent => {}
        PreviousHandler::Default | PreviousHandler::Ignored => {
            // The access is tried again after this, and ends the process.
            // SAFETY: the default action is always possible, and may be set in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if is_sent {
                // SAFETY: may be called in a handler; the signal comes once this one returns.
                unsafe { libc::raise(signal) };
            }
        }
    }
}
