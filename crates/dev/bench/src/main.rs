//! The program `ringloom-bench`, which `cargo xtask bench` builds and starts.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a command line tool talks to its user on the terminal")]

use std::process::ExitCode;

use bench::args::Args;
use clap::Parser;

fn main() -> ExitCode {
    match bench::run::main(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
