//! The binary `ringloom`: finds the subcommand, reports its error, sets the exit code.
//!
//! Started under the name `qemu-storage-daemon` it is `ringloom serve`.
//!
//! Not here: the options of `serve` (`options`), `tune` and `report` (`tuner`).
#![forbid(unsafe_code)]

mod log;
mod output;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use ctl::{CtlEnd, WrongUsage};
use daemon::{Log, ServeError, close_inherited};
use options::{HelpTopic, ServeCommand};
use ringloom::arguments::{self, Invocation, Subcommand};
use ringloom::commands::{
    AgentCommand, ConvertCommand, CtlCommand, MapCommand, ReportCommand, TopCommand, TuneCommand,
};
use top::TopEnd;

fn main() -> ExitCode {
    let called = match arguments::read(env::args_os()) {
        Ok(called) => called,
        Err(error) => return output::fail(arguments::PROGRAM, &error),
    };
    let Invocation { program, subcommand, rest } = called;
    match subcommand {
        Subcommand::Serve => run_serve(program, rest),
        Subcommand::Check => run_check(rest),
        Subcommand::TuneCommand => run_tune(rest),
        Subcommand::ReportCommand => run_report(rest),
        Subcommand::CtlCommand => run_ctl(rest),
        Subcommand::TopCommand => run_top(rest),
        Subcommand::ConvertCommand => run_convert(rest),
        Subcommand::MapCommand => run_map(rest),
        Subcommand::AgentCommand => run_agent(rest),
        Subcommand::Help => output::print(&arguments::help()),
        Subcommand::Version => output::print(&options::version()),
    }
}

fn run_serve(program: &str, arguments: Vec<OsString>) -> ExitCode {
    let plan = match options::parse(arguments) {
        Ok(ServeCommand::Help(topic)) => return output::print(&options::help(topic)),
        Ok(ServeCommand::Version) => return output::print(&options::version()),
        Ok(ServeCommand::Config(text)) => return output::print(&text),
        Ok(ServeCommand::Serve(plan)) => plan,
        Err(error) => return refuse(program, &error, error.is_of_configuration()),
    };
    if let Err(error) = daemon::check_service(&plan) {
        return refuse(program, &error, true);
    }
    if let Err(error) = close_inherited(&plan) {
        return output::fail(program, &error);
    }
    let log = match Log::open(&plan) {
        Ok(log) => Arc::new(log),
        Err(error) => return output::fail(program, &error),
    };
    log::start(&log, &plan.log_levels);
    let has_files = !plan.config.is_empty();
    match daemon::serve(*plan, &log) {
        Ok(()) => {
            log.settle();
            ExitCode::SUCCESS
        }
        // The process that did not start has said why.
        Err(error @ ServeError::ChildFailed) => output::fail(program, &error),
        Err(error) => {
            log::keep_error(&log, &error);
            let is_of_files = has_files && matches!(error, ServeError::NothingExported);
            refuse(program, &error, is_of_files)
        }
    }
}

/// Exits with 2 if that can only be changed by somebody who edits a configuration: a service manager need not try again. What is
/// wrong with a line is 1, as in qemu-storage-daemon.
fn refuse(program: &str, error: &(dyn Error + 'static), is_of_configuration: bool) -> ExitCode {
    let code = output::fail(program, error);
    if is_of_configuration { ExitCode::from(2) } else { code }
}

/// Says what a line of `serve` would do; the exit code is 1 if it would fail.
fn run_check(arguments: Vec<OsString>) -> ExitCode {
    let plan = match options::parse(arguments) {
        Ok(ServeCommand::Help(HelpTopic::Serve)) => return output::print(&arguments::check_help()),
        Ok(ServeCommand::Help(topic)) => return output::print(&options::help(topic)),
        Ok(ServeCommand::Version) => return output::print(&options::version()),
        Ok(ServeCommand::Config(text)) => return output::print(&text),
        Ok(ServeCommand::Serve(plan)) => plan,
        Err(error) => return output::fail("ringloom check", &error),
    };
    let report = daemon::check(*plan);
    let printed = output::print(&report.text());
    if report.is_servable() { printed } else { ExitCode::FAILURE }
}

fn run_convert(arguments: Vec<OsString>) -> ExitCode {
    match parsed::<ConvertCommand>("ringloom convert", arguments, ExitCode::from(2)) {
        Ok(parsed) => {
            log::start_quiet();
            finished("ringloom convert", convert::convert(&parsed.arguments))
        }
        Err(code) => code,
    }
}

fn run_map(arguments: Vec<OsString>) -> ExitCode {
    match parsed::<MapCommand>("ringloom map", arguments, ExitCode::from(2)) {
        Ok(parsed) => {
            log::start_quiet();
            finished("ringloom map", convert::map(&parsed.arguments))
        }
        Err(code) => code,
    }
}

fn run_agent(arguments: Vec<OsString>) -> ExitCode {
    match parsed::<AgentCommand>("ringloom agent", arguments, ExitCode::from(2)) {
        Ok(parsed) => match agent::run(&parsed.arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => output::fail("ringloom agent", &error),
        },
        Err(code) => code,
    }
}

fn finished(command: &str, result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(command, error.as_ref()),
    }
}

/// Exits with 2 after wrong usage, as the tools do beside which it is used, and with 3 after something was done that has to be
/// looked at.
fn run_ctl(arguments: Vec<OsString>) -> ExitCode {
    let parsed = match parsed::<CtlCommand>("ringloom ctl", arguments, ExitCode::from(2)) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    match ctl::run(&parsed.arguments) {
        Ok(CtlEnd::Done) => ExitCode::SUCCESS,
        Ok(CtlEnd::Attention) => ExitCode::from(3),
        Err(error) => {
            let code = output::fail("ringloom ctl", error.as_ref());
            if error.is::<WrongUsage>() { ExitCode::from(2) } else { code }
        }
    }
}

/// Exits with 2 after wrong usage as `ctl` does, and with 1 if a daemon could not be asked.
fn run_top(arguments: Vec<OsString>) -> ExitCode {
    let parsed = match parsed::<TopCommand>("ringloom top", arguments, ExitCode::from(2)) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    match top::run(&parsed.arguments) {
        Ok(TopEnd::Done) => ExitCode::SUCCESS,
        Ok(TopEnd::Incomplete) => ExitCode::FAILURE,
        Err(error) => {
            let code = output::fail("ringloom top", error.as_ref());
            if error.is::<WrongUsage>() { ExitCode::from(2) } else { code }
        }
    }
}

fn run_tune(arguments: Vec<OsString>) -> ExitCode {
    match parsed::<TuneCommand>("ringloom tune", arguments, ExitCode::FAILURE) {
        Ok(tune) => {
            log::start(&Arc::new(Log::on_stderr()), &[]);
            end(tuner::run(tune.arguments))
        }
        Err(code) => code,
    }
}

fn run_report(arguments: Vec<OsString>) -> ExitCode {
    match parsed::<ReportCommand>("ringloom report", arguments, ExitCode::FAILURE) {
        Ok(report) => end(tuner::report(report.arguments)),
        Err(code) => code,
    }
}

/// The options, or the code to end with: `wrong` after an error, or that after the help.
fn parsed<T: Parser>(name: &str, arguments: Vec<OsString>, wrong: ExitCode) -> Result<T, ExitCode> {
    let name = OsString::from(name);
    T::try_parse_from([name].into_iter().chain(arguments)).map_err(|error| {
        if error.use_stderr() {
            // Its text has its own form and colours; nobody is left to hear that stderr is closed.
            drop(error.print());
            return wrong;
        }
        output::print(&error.render().to_string())
    })
}

fn end(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause: &(dyn Error + 'static) = error.as_ref();
            output::fail(arguments::PROGRAM, cause);
            ExitCode::from(tuner::exit_code(&error))
        }
    }
}
