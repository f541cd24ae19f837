//! `ringloom serve --metrics`: what a daemon does, for Prometheus, over HTTP.
//!
//! Where it stands: beside the request path. A thread of its own answers scrapes. It reads the gauges that iothreads and
//! queues count anyway, and asks the first thread for what only that one knows.
//!
//! Not here: who fills an [`Inventory`] (`daemon`), and the gauges themselves (`request_path`, `iothread`).

#![forbid(unsafe_code)]

mod classic_text;
mod connection;
mod duration_buckets;
mod exposition;
mod families;
mod inventory;
mod listener;
mod options;
mod reading;
mod request;
mod server;

pub use families::{FAMILIES, Family, FamilyKind};
pub use inventory::{
    BitmapsOfNode, ExportPlacement, Inventory, InventoryDesk, IothreadEntry, JobEntry,
    NbdServerLoad, PoolEntry, ServedExport, StorageFinding,
};
pub use listener::MetricsError;
pub use options::{METRICS_MODE, MetricsAddress, MetricsOptions};
pub use reading::{HealthSource, MetricsReader};
pub use server::MetricsServer;
