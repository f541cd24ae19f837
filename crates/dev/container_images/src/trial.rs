//! The images tried, each as what it is for. Every trial says what it has seen.
//!
//! Invariants: programs of an image run on its files alone, which they cannot change, as the image's user, with processes and a network
//! of their own. Limits: an answer of an agent comes within the limits of its client; everything else within those here.

mod agent;
mod container;
mod guest;
mod serve;

pub use agent::try_agent;
pub use guest::try_guest;
pub use serve::try_serve;
