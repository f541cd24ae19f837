//! Cells, contenders and settings for tests, of this crate and of those that build on it.
#![expect(clippy::missing_panics_doc, reason = "a test panics on what is wrong")]

use clap::Args as _;
use load::{BlockBytes, Shape};

use crate::args::TuneArgs;
use crate::args::defaults::without_guests;
use crate::cell::Cell;
use crate::contender::{Contender, Iothreads, Subject};
use crate::matrix::Matrix;
use crate::settings::Settings;

/// The cell of an operation by its name and a block size in bytes.
pub fn cell(op: &str, bs: u64, jobs: u16, iodepth: u16) -> Cell {
    let block = BlockBytes::try_from(bs).expect("a block size");
    let op = op.parse().expect("an operation");
    Cell::new(Shape::new(op, block, jobs, iodepth).expect("a load"))
}

/// The client with a number of iothreads.
pub fn client(iothreads: u16) -> Contender {
    Contender::new(Subject::Client, Iothreads::new(iothreads))
}

/// The options of a line without `tune`.
///
/// # Errors
/// What the command line says of it.
pub fn parse(line: &str) -> Result<TuneArgs, String> {
    TuneArgs::of_words(line.split_whitespace())
}

/// What is said of an option, in one line.
pub fn help(option: &str) -> String {
    let command = TuneArgs::augment_args(clap::Command::new("tune"));
    let found = command.get_arguments().find(|it| it.get_long() == Some(option));
    let found = found.expect("an option");
    let help = found.get_long_help().or(found.get_help()).expect("its help").to_string();
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The settings of a line of options on a machine with so many cores.
pub fn settings(line: &str, cores: usize) -> Settings {
    let args = parse(line).expect("valid options");
    let subjects = Some(args.measure().subject.clone()).filter(|it| !it.is_empty());
    let subjects = subjects.unwrap_or_else(|| without_guests(args.mode()));
    Settings::new(&args, &subjects, cores, 42)
}

/// How many runs a repeat of a matrix has.
pub fn runs_per_repeat(matrix: &Matrix) -> usize {
    matrix.entries.iter().map(|entry| entry.contenders.len()).sum()
}
