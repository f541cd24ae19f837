//! Pools of iothreads: started for the first export that uses one, on the CPUs that it is to run on.
//!
//! Invariants: all threads of a pool run on its CPUs, also those that start late: they are started by the thread that places
//! rings, and inherit them.

use graph::{PoolMode, PoolOptions};
use iothread::IothreadPool;
use kernel_io::{CpuList, NumaTopology};
use placement::PoolSettings;
use sandbox::Sandbox;

use super::{BuildError, DaemonState, settings};
use crate::placer::{PlacedPool, SnapshotReader};

impl DaemonState {
    /// The pool of that name, which is started if no export has used it. `storage` is the device below the export that
    /// uses it now.
    pub(super) fn pool_for(
        &mut self,
        id: &str,
        storage: Option<u64>,
    ) -> Result<&PlacedPool, BuildError> {
        if let Some(options) = self.unused_pools.remove(id) {
            // Before the CPUs near the storage are all that there are.
            let policy = options.settings(options.cpus.as_ref()).expect("it was read");
            let cpus = options.cpus.clone();
            let cpus = cpus.or_else(|| near(&NumaTopology::default(), storage?));
            let pool = match &cpus {
                None => self.start_pool(id, &options, policy, None)?,
                Some(cpus) => {
                    let bind = || {
                        let (pool, failed) = (id.to_owned(), cpus.clone());
                        let bound = cpus.bind_this_thread();
                        bound.map_err(|source| BuildError::Cpus { pool, cpus: failed, source })?;
                        self.start_pool(id, &options, policy, Some(cpus))
                    };
                    let joined = std::thread::scope(|scope| scope.spawn(bind).join());
                    joined.expect("a panic in a thread ends the process")?
                }
            };
            self.pools.insert(id.to_owned(), pool);
        }
        Ok(&self.pools[id])
    }

    /// Has a pool place queues as the load asks, or leave them where they are.
    pub(super) fn set_pool_mode(&mut self, id: &str, mode: PoolMode) {
        if let Some(unused) = self.unused_pools.get_mut(id) {
            unused.mode = mode;
        }
        if let Some(pool) = self.pools.get(id).filter(|pool| pool.mode() != mode) {
            pool.set_mode(mode);
            match mode {
                PoolMode::Auto => tracing::info!("pool {id}: queues are placed"),
                PoolMode::Frozen => tracing::info!("pool {id}: queues stay where they are"),
            }
        }
    }

    /// Makes a pool of iothreads, and starts what places rings on them, on the CPUs of the calling thread.
    fn start_pool(
        &self,
        id: &str,
        options: &PoolOptions,
        policy: PoolSettings,
        cpus: Option<&CpuList>,
    ) -> Result<PlacedPool, BuildError> {
        let pool = IothreadPool::new(id, policy.max(), self.host(), settings(options.polling))?;
        for slot in 1..policy.min() {
            pool.start(slot)?;
        }
        // Before the fences, behind which nothing is opened.
        let reader = SnapshotReader::new();
        let start = || {
            PlacedPool::start(pool, (policy, options.mode), reader, (&self.sources, &self.clock))
        };
        let started = Sandbox::start_inside(self.sandbox.as_deref(), start).flatten();
        let failed = |source| BuildError::Placer { pool: id.to_owned(), source };
        let on = cpus.map_or_else(String::new, |cpus| format!(" on CPUs {cpus}"));
        tracing::info!("pool {id}: up to {} iothreads{on}", policy.max());
        started.map_err(failed)
    }
}

/// The CPUs near a device that this process may use, if the host has several NUMA nodes and tells.
fn near(host: &NumaTopology, device: u64) -> Option<CpuList> {
    if host.nodes().len() < 2 {
        return None;
    }
    let node = host.node_of_device(rustix::fs::major(device), rustix::fs::minor(device))?;
    let cpus = host.cpus_of(node)?.and(&CpuList::of_this_thread().ok()?);
    (cpus.count() > 0).then_some(cpus)
}

#[cfg(test)]
mod tests;
