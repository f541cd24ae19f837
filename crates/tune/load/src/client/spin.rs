//! The client that never sleeps: one thread looks at all queues, with notifications off.

use crate::client::{ClientEngine, Connection, engines};
use crate::conduct::{Timing, Watch};
use crate::drive::{Ended, Engine};
use crate::light::drive_lightly;
use crate::workload::Access;
use crate::{LoadError, Sample};

/// An engine whose `wait` only looks.
pub(crate) struct Spinning(ClientEngine);

impl Engine for Spinning {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        self.0.submit(slot, access)
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        self.0.flush()
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.0.reap(ended);
        Ok(())
    }
}

impl Connection {
    /// Runs the workload on the calling thread, which polls all queues, and closes the connection.
    ///
    /// # Errors
    /// If a request fails, none completes for a long time, or the watch stops the run.
    pub fn spin(self, timing: Timing, watch: &mut dyn Watch) -> Result<Sample, LoadError> {
        spin_with(self, timing, watch, |engine| engine)
    }
}

/// Runs the workload of a connection with engines made from its polling ones.
pub(crate) fn spin_with<E: Engine>(
    connection: Connection,
    timing: Timing,
    watch: &mut dyn Watch,
    make: impl FnMut(Spinning) -> E,
) -> Result<Sample, LoadError> {
    let Connection { queues, transport, buffers, workload } = connection;
    let engines = engines(queues, &*transport, &buffers, &workload);
    let mut engines: Vec<_> = engines.into_iter().map(Spinning).map(make).collect();
    let result = drive_lightly(&mut engines, &workload, timing, watch);
    drop(engines);
    drop(transport); // After the engines: queues point into it.
    result
}
