//! The commands whose arguments clap reads. `serve` and `check` have their own table (`options`).

use clap::{CommandFactory, Parser};

/// Measures a disk with different numbers of iothreads and recommends one
#[derive(Debug, Parser)]
#[command(name = "ringloom tune", version)]
pub struct TuneCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: tuner::TuneArgs,
}

/// Renders what ringloom tune measured
#[derive(Debug, Parser)]
#[command(name = "ringloom report", version)]
pub struct ReportCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: tuner::ReportArgs,
}

/// Controls a running daemon over its monitor
#[derive(Debug, Parser)]
#[command(name = "ringloom ctl", version)]
pub struct CtlCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: ctl::CtlArgs,
}

/// Shows live what the queues, iothreads and jobs of running daemons do
#[derive(Debug, Parser)]
#[command(name = "ringloom top", version)]
pub struct TopCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: top::TopArgs,
}

/// Copies a disk into another one
#[derive(Debug, Parser)]
#[command(name = "ringloom convert", version)]
pub struct ConvertCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: convert::ConvertArgs,
}

/// Says what the bytes of a disk are, without reading them
#[derive(Debug, Parser)]
#[command(name = "ringloom map", version)]
pub struct MapCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: convert::MapArgs,
}

/// Runs fio for a tuner elsewhere, as it orders over a stream
///
/// It stands in images; people have no use for it, so it has neither a manual page nor completions.
#[derive(Debug, Parser)]
#[command(name = "ringloom agent", version)]
pub struct AgentCommand {
    /// All of them.
    #[command(flatten)]
    pub arguments: agent::AgentArgs,
}

/// All of these that people use, each with its word.
pub fn all() -> Vec<(&'static str, clap::Command)> {
    vec![
        ("ctl", CtlCommand::command()),
        ("top", TopCommand::command()),
        ("convert", ConvertCommand::command()),
        ("map", MapCommand::command()),
        ("tune", TuneCommand::command()),
        ("report", ReportCommand::command()),
    ]
}
