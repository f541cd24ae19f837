//! Packed rings: orderly, random, hostile.

mod driver;
mod hostile;
mod notify;
mod random;
