//! Iothreads under a guest: serving, moving rings while they are loaded, stopping in mid-move, crashing in
//! mid-move.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod allocations;
mod breaks;
mod cancels;
mod channels;
mod confined;
mod dirty_log;
mod drains;
mod errands;
mod fairness;
mod files;
mod full;
mod guest;
mod holding;
mod hung;
mod inflight;
mod interrupted;
mod lanes;
mod mosaic;
mod moves;
mod open_requests;
mod pools;
mod registry;
mod retire;
mod setup;
mod socket;
mod standstill;
mod streams;
mod syncs;
mod twice;
mod units;
mod usage;
mod waiters;
