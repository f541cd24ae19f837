//! Stripes: their layout, what they ask their children for, and how the answers come together.

mod allocations;
mod answers;
pub(crate) mod child;
mod model;
mod nodes;
