//! NBD's server side: the negotiation of a connection, and the connection as a front end.
//!
//! Where it stands in the life of a request: before its beginning, at it and at its end. Whoever accepts a connection
//! gives what the client sends to a [`Negotiation`] and sends what that says, until the client has chosen an export; then
//! an iothread serves the [`NbdConnection`].
//!
//! Invariants: nothing here waits; every length that a client names is bounded before memory is used for it.
//!
//! Not here: listeners, time limits, TLS credentials and which exports there are (the daemon, behind [`ExportCatalog`]).

#![forbid(unsafe_code)]

mod connection;
mod export;
mod faults;
mod negotiation;
mod settings;
mod transmission;

pub use connection::{NbdConnection, NbdConnectionSetup, NbdTransport};
pub use export::{
    BlockSizes, ExportCatalog, ExportOffer, ExportSummary, ProtocolString, StringRefusal,
};
pub use faults::{ConnectionEnd, LostConnection, ProtocolFault};
pub use nbd_wire as wire;
pub use negotiation::{
    Negotiation, NegotiationFault, NegotiationProgress, NegotiationStep, OPTION_BYTES_MAX,
    OPTIONS_MAX, RECEIVED_BYTES_MAX, SENT_BYTES_MAX, TlsPolicy,
};
pub use settings::{
    BITMAPS_MAX, HeaderStyle, MetaContext, MetaContexts, TransmissionFlags, TransmissionSettings,
};
