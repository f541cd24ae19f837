//! Packed rings: orderly, random, hostile.

pub(crate) mod driver;
mod hostile;
mod notify;
mod random;
