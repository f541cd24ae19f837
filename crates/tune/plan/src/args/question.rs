//! The options of `ringloom tune` and `ringloom report` that say what the answer shall be good for.

use clap::Args;

use crate::question::{IopsMin, P99Max, Tolerance, Want};
use crate::settings::Step;
use crate::weights::Weight;

/// What is asked. `ringloom report` asks it of what was measured before.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Question (what the number of iothreads is to be good for)")]
pub struct QuestionArgs {
    /// What it is to be good for: the most IOPS, the lowest p99, or the least CPU time per request
    /// [default: throughput]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub want: Option<Want>,

    /// Only numbers that keep p99 at this or below, such as 2ms, in every cell that counts
    #[arg(long, value_name = "TIME")]
    pub p99_max: Option<P99Max>,

    /// Only numbers that reach so many requests per second, such as 50k, in every cell that counts
    #[arg(long, value_name = "RATE")]
    pub iops_min: Option<IopsMin>,

    /// How much cells count in the answer, such as randread=3,randwrite:4k=1; the others do not
    /// [default: all alike, the worst one decides]
    #[arg(long, value_delimiter = ',', value_name = "OP[:SIZE]=WEIGHT")]
    pub weights: Vec<Weight>,

    /// What a number of iothreads that takes less CPU may lack of the best, in percent: more of them are
    /// recommended only if they are shown to gain more than that [default: 5]
    #[arg(long, value_name = "PERCENT")]
    pub tolerance: Option<Tolerance>,

    /// What more than is measured would bring, as a range with its assumption: a number of iothreads, or cores=N,
    /// jobs=N or iodepth=N, such as 16,cores=32. It takes the subject host
    #[arg(long, value_delimiter = ',', value_name = "N,cores=N,…")]
    pub predict: Vec<Step>,
}

impl QuestionArgs {
    /// Whether anything is asked.
    pub fn is_asked(&self) -> bool {
        let Self { want, p99_max, iops_min, weights, tolerance, predict } = self;
        want.is_some()
            || p99_max.is_some()
            || iops_min.is_some()
            || !weights.is_empty()
            || tolerance.is_some()
            || !predict.is_empty()
    }
}
