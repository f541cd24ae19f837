//! The device side of a ring against a driver written for the purpose: orderly, random, hostile.

mod blk;
mod config;
mod driver;
mod guest;
mod hostile;
mod log;
mod lost;
mod memory;
mod notify;
mod packed;
mod random;
