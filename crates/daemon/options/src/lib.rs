//! The command line of `ringloom serve`: qemu-storage-daemon's, and a short form.
//!
//! Where it stands: the binary calls [`parse`] and hands the [`Plan`] to the daemon. An argument goes
//! through two steps: as written (`getopt` and `syntax`) and as valid (their own crates,
//! then `references` and the model of `graph` for what it refers to).
//!
//! Invariants: what ringloom does not do yet is refused by name, never accepted and ignored.
//! Not here: building what was asked for (the graph).

#![forbid(unsafe_code)]

mod config;
mod fault;
mod getopt;
mod help;
mod image;
mod line;
mod log_settings;
mod long;
mod plan;
mod references;
mod short;
#[cfg(test)]
mod tests;

pub use config::{
    ConfigError, ConfigSource, FilePosition, OptionDescription, ValueForm, descriptions,
};
pub use fault::{CommandLineError, CommandLineSyntaxError};
pub use help::{help, version};
pub use host::{LOG_PARTS, LogLevel, LogLevels, filter_by_log_levels};
pub use image::image_node;
pub use line::parse;
pub use log_settings::{LevelError, LevelSetting, LogFormat};
pub use long::restored;
pub use plan::{
    Daemonize, HelpTopic, OldState, Plan, PlanStep, ServeCommand, SocketRights, TakeoverMode,
};
pub use syntax::nearest;
