//! From recorded runs to what they say. Pure functions.
//!
//! `summary` makes rows, blocks, the best number and n90 of the runs, with the intervals of `stats`; `answer` makes of them one
//! number of iothreads with its price, certainty and doubts, and `bottleneck` tells what limits it. `drift` and `spread` say
//! what the machine did meanwhile, `compare` what two commands have in common, `published` what
//! others have measured.
//!
//! Not here: words for a report, but for the sentences of the answer, which the report shows as they are.
#![forbid(unsafe_code)]

pub mod answer;
pub mod bottleneck;
pub mod compare;
pub mod drift;
pub mod published;
pub mod settling;
pub mod spread;
pub mod stats;
pub mod summary;
