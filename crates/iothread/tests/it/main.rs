//! Iothreads under a guest: serving, moving rings while they are loaded, stopping in mid-move.

mod guest;
mod moves;
mod open_requests;
mod setup;
