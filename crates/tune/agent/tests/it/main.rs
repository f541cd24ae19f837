//! An agent with its client: over pipes and TCP, with real fio, and with peers that speak something else.

mod hostile;
mod runs;
mod support;
