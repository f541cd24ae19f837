//! A disk behind iothreads as a network of queues: what more iothreads, cores or jobs would bring, as a range with its
//! assumption.
//!
//! `tuner` gives the figures that it measured (`Measured`) and what is asked (`Wanted`), and prints the answer (`Prediction`).
//!
//! 1. `network`: jobs land on queues, queue i is served by iothread i mod n, and each iothread with its requests is a closed
//!    network: they wait for it, and are then with the device and the guest, a delay. All together get no more than the device,
//!    the guest and the CPUs give.
//! 2. `fit`: what was not measured is fitted: the least of a function, and a walk over all that fits nearly as well.
//! 3. `prediction`: the range over these, widened by what the kind of step has been wrong by (docs/statistics.md has the tables).
//!
//! Invariants: pure; the same figures give the same answer. A range is never narrower than the error of its kind of step, and
//! nothing is predicted without the bare host, from too few numbers, or from figures that the network does not explain.
//! Not here: reading results (`tuner`), and the simulated machines that it is tested on, which share no code with it.
#![forbid(unsafe_code)]

mod fit;
mod network;
mod prediction;

pub use fit::{minimise, walk};
pub use network::{Landing, Network, closed, lower};
pub use prediction::{
    Claim, Measured, N90, NUMBERS_MIN, NoAnswer, Observation, Prediction, Range, Shape, Wanted,
    predict,
};
