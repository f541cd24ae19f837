//! What threads without a ring have carried out on files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod control;
