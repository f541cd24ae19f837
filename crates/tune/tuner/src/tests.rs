//! Tests of the whole: the method on simulated machines, and the documents against what is written.

mod document;
mod simulation;
