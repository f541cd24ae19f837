//! The options of `ringloom report` as the command line gives them.

use std::path::PathBuf;

use clap::Args;

use super::QuestionArgs;

/// Options of `ringloom report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Directory of results, as ringloom tune leaves it, or a results.jsonl
    #[arg(value_name = "DIR")]
    pub results: PathBuf,

    /// Compare with this one: what became faster or slower in it, and what is noise
    #[arg(value_name = "DIR2")]
    pub other: Option<PathBuf>,

    /// Directory of the files: report.md, report.html, report.csv, report.jsonl and config/ of results;
    /// compare.md and report.html of a comparison [default: the one of the results; of a comparison, and
    /// where another question is asked, none are written]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print the report as a line of JSON, for programs
    #[arg(long, conflicts_with = "other")]
    pub json: bool,

    /// What is asked of the figures.
    #[command(flatten)]
    pub question: QuestionArgs,
}
