//! What happens when guest memory is touched that is no longer there.
//!
//! Where it stands in the life of a request: beside it. A front end that truncates the file behind
//! a region makes the kernel answer the next access with SIGBUS. The handler puts zeroes there,
//! marks the region, and lets the access happen again; the ring that sees the mark
//! (`GuestMemory::is_lost`) is served no further.
//!
//! Invariants: a fault outside our regions goes to whoever handled SIGBUS before.
//! Threads: the handler runs on the thread that touched the memory, and does only what is allowed
//! in a signal handler: atomics and system calls.
//! Limits: a file is cut at its end, so all of the region behind the address is replaced at once.
//! However many pages are touched, a region falls into two mappings at most: page by page, a
//! client could use up the mappings that the process may have.

#![expect(unsafe_code, reason = "handles a signal and puts a mapping in place of a lost one")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libc::{sigaction, siginfo_t};

use super::watch::{self, Tail};

type PlainHandler = extern "C" fn(c_int);
type DetailedHandler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Who handled SIGBUS before. Stored before the handler is installed, so that it finds it.
static PREVIOUS: OnceLock<Previous> = OnceLock::new();

#[derive(Debug, Clone, Copy)]
enum Previous {
    Default,
    Ignored,
    Plain(PlainHandler),
    Detailed(DetailedHandler),
}

/// Installs the handler, for the whole process. Until then, and in other processes, the loss of
/// guest memory is deadly. May be called again, which changes nothing.
pub fn catch_lost_memory() -> io::Result<()> {
    let ours: DetailedHandler = on_bus_error;
    let ours = ours as *const () as libc::sighandler_t;
    let found = current_action()?;
    if found.sa_sigaction == ours {
        return Ok(());
    }
    // Two first calls at a time find the same; it does not matter whose is kept.
    PREVIOUS.get_or_init(|| Previous::of(&found));
    let mut action = found;
    action.sa_sigaction = ours;
    // On the alternative stack, where there is one, as the handler of Rust's runtime expects.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `sigemptyset` needs a writable set; `action` is ours.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: `sigaction` reads a whole action (copied from the present one, then changed) and
    // stores none for null. The handler has the signature that SA_SIGINFO asks for, lives for
    // ever, and does only what is safe in a signal handler.
    match unsafe { sigaction(libc::SIGBUS, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current_action() -> io::Result<sigaction> {
    let mut found = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: `sigaction` changes nothing for a null action and fills the writable one behind it.
    if unsafe { sigaction(libc::SIGBUS, std::ptr::null(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has filled the action.
    Ok(unsafe { found.assume_init() })
}

impl Previous {
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
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a whole description, valid until the handler
    // returns, which nobody else changes.
    let about = unsafe { &*info };
    if about.si_code == libc::BUS_ADRERR {
        // SAFETY: a SIGBUS that the kernel sends for an access carries its address.
        let address = unsafe { about.si_addr() };
        if let Some(tail) = watch::find(address.addr())
            && replace(&tail)
        {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Puts zeroes where the memory was. `false` if the kernel has no room for them.
fn replace(tail: &Tail) -> bool {
    tail.mark_lost();
    // SAFETY: the function has no duties; every thread has an errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own, aligned and initialised.
    let errno = unsafe { place.read() };
    // SAFETY: MAP_FIXED replaces what is mapped in the range. The range is the end of a region
    // that is mapped (its watch is dropped before it is unmapped, and the thread that was
    // interrupted uses it, so neither happens now) and that only promises bytes which may change
    // at any time. It starts and ends at a page, a huge one where the region has those.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(tail.start),
            tail.bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // SAFETY: as for the read; the interrupted code may be about to look at its errno.
    unsafe { place.write(errno) };
    mapped != libc::MAP_FAILED
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: as in `on_bus_error`, which passes on what the kernel gave it.
    let code = unsafe { (*info).si_code };
    // Codes up to 0 are those of other processes (and of this one, by `raise`): no access failed.
    let is_sent = code <= 0;
    match PREVIOUS.get().copied().unwrap_or(Previous::Default) {
        Previous::Plain(handler) => handler(signal),
        Previous::Detailed(handler) => handler(signal, info, context),
        Previous::Ignored if is_sent => {}
        Previous::Default | Previous::Ignored => {
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
