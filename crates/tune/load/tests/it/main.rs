//! The loads of this crate against programs nobody here wrote.
#![expect(clippy::unwrap_used, reason = "test code: a surprise must fail the test")]

mod bench;
mod fio;
mod seconds;
