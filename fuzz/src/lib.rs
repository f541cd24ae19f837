//! Fuzz targets, one for each input that a guest, a client or a user controls.
//!
//! Each target is a function of bytes that panics when something is found. `cargo xtask fuzz` runs
//! them under libFuzzer (`src/bin`); the tests of this crate run the kept inputs of `corpus/`
//! without it.
//!
//! Not here: how the engine is built and started (`xtask`).

#![forbid(unsafe_code)]

mod blk;
mod config;
mod guest;
mod input;
mod must_fail;
mod nbd;
mod nbd_client;
mod options;
mod qcow2;
mod qmp;
mod replay;
mod results;
mod ring;
mod session;
mod takeover;

pub use blk::blk_decode;
pub use config::config_file;
pub use must_fail::must_fail;
pub use nbd::{nbd_negotiation, nbd_transmission};
pub use nbd_client::nbd_client;
pub use options::options_keyval;
pub use qcow2::qcow2_header;
pub use qmp::qmp;
pub use replay::replay;
pub use results::results_file;
pub use ring::{packed_ring, split_ring};
pub use session::vhost_user_session;
pub use takeover::takeover_wire;
