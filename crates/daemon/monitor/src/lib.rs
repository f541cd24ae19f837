//! QMP: monitors, their character devices, commands over what a daemon serves with, and the schema of all that.
//!
//! Where it stands: above `control`, whose owner, the first thread, carries commands out one after the other. Each
//! monitor has a thread that talks to its clients; nothing here touches the path of a request.
//!
//! A new command is a function and a line in the table of `commands`; `query-commands`, `query-qmp-schema` and the
//! documents follow from it.

#![forbid(unsafe_code)]

mod chardev;
mod client;
mod commands;
mod distinct_keys;
mod events;
mod inbox;
mod jobs;
mod json_stream;
mod monitors;
mod options;
mod qmp_error;
mod request;
mod schema;
mod session;
mod types;

pub use chardev::ChardevError;
pub use client::{EVENTS_BYTES_MAX, REQUESTS_MAX};
pub use json_stream::{DEPTH_MAX, JsonError, JsonStream, MESSAGE_BYTES_MAX};
pub use monitors::{DaemonFate, JobReading, MonitorSetupError, Monitors};
pub use options::{CHARDEVS, ChardevKind, ChardevOptions, MONITOR, MonitorOptions, SocketRole};
pub use qmp_error::{ErrorClass, QmpError};
pub use request::Request;
