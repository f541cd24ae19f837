//! Layers over children that answer, hold and refuse as a test wants it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod again;
mod resize;
mod stripe;

#[global_allocator]
static COUNTING: testkit::counting::Counting = testkit::counting::Counting;
