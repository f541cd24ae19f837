//! The transmission phase as bytes and decisions: what requests mean, and how replies look.
//!
//! Invariants: a decision names whole sectors inside the disk; nothing here has state.
//! Not here: whose turn it is, memory and sockets ([`crate::NbdConnection`]).

pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod status;
