//! What a daemon serves with: iothreads, graph, claims and exports, made, changed and removed step by step.

#![forbid(unsafe_code)]

mod configuration;
mod fault_point;
mod gauges;
mod health;
mod placer;
mod pool_report;
mod running_export;
mod served_disks;
mod state;
mod state_file;
mod usage;

pub use configuration::{Configuration, KeptJob};
pub use health::{HealthFindings, HealthWatch};
pub use pool_report::{PoolExportReport, PoolReport};
pub use running_export::RunningExport;
pub use served_disks::ServedDisks;
pub use state::{
    ActivityError, AtOnce, BackingName, BackupBitmap, BackupChanges, BackupOptions, BackupSync,
    BitmapSync, BlockJobError, BlockJobProgress, BuildError, CommitOptions, ConnectRights,
    ControlError, DaemonState, ExportedBitmapError, GraphChangeError, JobNews, JobObserver,
    ListeningExport, MirrorEnd, MirrorOptions, MirrorSync, NbdTlsError, NoWait, PreparedExport,
    PreparedProtocol, StatePolicy, StreamOptions,
};
pub use state_file::{StateFile, StateFileError};
pub use usage::UsageReport;
