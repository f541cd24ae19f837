//! The system's allocator, counting for each thread: to show what allocates nothing.
//!
//! A test binary that counts makes [`Counting`] its global allocator.

#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static BYTES_MOST: Cell<i64> = const { Cell::new(0) };
}

/// How often the calling thread has allocated.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// How many bytes more the calling thread has allocated than freed.
#[must_use]
pub fn bytes() -> i64 {
    BYTES.get()
}

/// The most that it was at once since the last call.
#[expect(clippy::must_use_candidate, reason = "a call may only begin to count")]
pub fn bytes_most() -> i64 {
    BYTES_MOST.replace(BYTES.get())
}

fn count(bytes: usize, freed: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + u64::from(bytes > 0));
    let now = BYTES.get().wrapping_add_unsigned(bytes as u64).wrapping_sub_unsigned(freed as u64);
    BYTES.set(now);
    BYTES_MOST.set(BYTES_MOST.get().max(now));
}

/// The allocator.
#[derive(Debug)]
pub struct Counting;

// SAFETY: everything is left to the system's allocator; counting touches a thread-local number that
// needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise is the callee's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
