//! The NBD server: its options, its listener, the exports by name, a thread for each connection.
//!
//! Where it stands: between clients on sockets and the disks of exports. A connection's thread negotiates, has its
//! transmission served on an iothread (`nbd`), and waits for its end.
//!
//! Not here: the protocol (`nbd`), which exports there are (`control`).

#![forbid(unsafe_code)]

mod attach;
mod catalog;
mod connection;
mod export;
mod handshake_stream;
mod listener;
mod options;
mod server;

pub use attach::nbd_attach_lines;
pub use catalog::NbdCatalog;
pub use export::NbdExport;
pub use listener::ListenError;
pub use options::{
    InetAddress, ListenAddress, ListenGrant, NBD_SERVER, NBD_SERVER_START, NbdServerOptions,
};
pub use server::{NbdLoad, NbdServer, NbdServerError, ServerTls};

/// The most dirty bitmaps that an export shows.
pub const EXPORT_BITMAPS_MAX: usize = nbd::BITMAPS_MAX;
