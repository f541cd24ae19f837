//! Sessions over a real socket: a front end made of bytes on one side, a device that keeps a
//! record on the other.

mod channel;
mod front_end;
mod garbage;
mod handed_over;
mod inflight;
mod log;
mod memory;
mod mock;
mod negotiation;
mod packed;
mod rings;
