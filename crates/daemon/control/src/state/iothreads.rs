//! Which iothreads serve an export, changed while its guest runs.
//!
//! Invariants: rings that run are moved, and lose nothing (`iothread::placed_source`); rings that are started later, and
//! those of the next start, are served by the same iothreads. One queue that is moved by itself goes back with the next
//! client.
//! Threads: the first one.

use std::sync::Arc;

use exports::{ExportOptions, ExportedDisk, QUEUES_MAX, QueuePin, ServingIothreads};
use graph::{ModelError, NodeUser};
use iothread::{Iothread, PlacedSource};

use super::{ControlError, DaemonState, storage_of};

impl DaemonState {
    /// Has the exports above a node served by an iothread, or by `main` if it is none: all of them, or none. Blocks until all
    /// rings are moved.
    pub fn set_iothread(&mut self, node: &str, iothread: Option<&str>) -> Result<(), ControlError> {
        self.graph.node(node)?;
        let exports = self.graph.model().exports_above(&NodeUser::Node(node.to_owned()));
        let before = exports.iter().map(|id| {
            let options = self.export_options.get(id).cloned();
            options.ok_or_else(|| ModelError::NoExport(id.clone()))
        });
        let before = before.collect::<Result<Vec<_>, _>>()?;
        let changed = before.iter().try_for_each(|options| {
            let mut options = options.clone();
            options.iothreads = iothread.into_iter().map(str::to_owned).collect();
            if let Some(own) = options.vhost_user_blk_mut() {
                own.pins.clear();
            }
            self.serve_as(&options)
        });
        changed.and_then(|()| self.keep()).inspect_err(|_| {
            for options in &before {
                let id = &options.id;
                if let Err(error) = self.serve_as(options) {
                    tracing::error!("export {id}: served by others: {}", host::chain_of(&error));
                }
            }
        })
    }

    /// Has an export served by the iothreads that its options name.
    fn serve_as(&mut self, options: &ExportOptions) -> Result<(), ControlError> {
        let id = &options.id;
        let export = self.exports.iter().find(|export| export.disk().id == *id);
        let disk = export.ok_or_else(|| ModelError::NoExport(id.clone()))?.disk();
        let disk = Arc::clone(disk);
        self.graph.set_export_iothreads(id, &options.iothreads)?;
        let serving = self.iothreads_of(options)?;
        if let ServingIothreads::Pool(pool) = disk.iothreads() {
            self.pools[pool.name()].remove(id);
        }
        disk.set_iothreads(serving.clone());
        if let ServingIothreads::Pool(pool) = &serving {
            let storage = storage_of(&self.graph.files_below_export(id));
            self.pools[pool.name()].add(options, &disk, storage);
        }
        self.export_options.insert(id.clone(), options.clone());
        for source in self.sources_of(id) {
            let to = serving.of_queue(source.name().queue);
            move_source(&source, &to);
        }
        tracing::info!("export {id}: served by {serving}");
        Ok(())
    }

    /// Has a queue stay on the iothread of that number in its pool, or lets the pool place it; kept.
    pub fn pin_queue(
        &mut self,
        id: &str,
        queue: u16,
        iothread: Option<u16>,
    ) -> Result<(), ControlError> {
        let export = self.exports.iter().find(|export| export.disk().id == id);
        let disk = Arc::clone(export.ok_or_else(|| ModelError::NoExport(id.into()))?.disk());
        let ServingIothreads::Pool(pool) = disk.iothreads() else {
            return Err(ControlError::NoPool(id.to_owned()));
        };
        let before = self.export_options[id].clone();
        let mut options = before.clone();
        let no_pool = || ControlError::NoPool(id.to_owned());
        let own = options.vhost_user_blk_mut().ok_or_else(no_pool)?;
        let queues = usize::from(own.num_queues.unwrap_or(QUEUES_MAX));
        let iothreads = pool.slots();
        let of_pool = format!("iothread of pool '{}'", pool.name());
        let of_export = format!("queue of export '{id}'");
        let numbers = [(of_export, Some(queue), queues), (of_pool, iothread, iothreads)];
        for (what, number, count) in numbers {
            if let Some(number) = number.filter(|number| usize::from(*number) >= count) {
                return Err(ControlError::NoNumber { what, number, count });
            }
        }
        own.pins.retain(|pin| pin.queue != queue);
        own.pins.extend(iothread.map(|iothread| QueuePin { queue, iothread }));
        self.place_anew(&options, &disk, pool.name());
        self.keep().inspect_err(|_| self.place_anew(&before, &disk, pool.name()))
    }

    /// Has a pool place the queues of an export as its options say now.
    fn place_anew(&mut self, options: &ExportOptions, disk: &Arc<ExportedDisk>, pool: &str) {
        let storage = storage_of(&self.graph.files_below_export(&options.id));
        self.pools[pool].remove(&options.id);
        self.pools[pool].add(options, disk, storage);
        self.export_options.insert(options.id.clone(), options.clone());
    }

    /// Moves a queue that runs to an iothread, until its client leaves. Blocks until it is served there.
    pub fn move_queue(
        &mut self,
        export: &str,
        queue: u16,
        iothread: &str,
    ) -> Result<(), ControlError> {
        let serving = self.exports.iter().find(|it| it.disk().id == export);
        let serving = serving.ok_or_else(|| ModelError::NoExport(export.to_owned()))?;
        if let ServingIothreads::Pool(pool) = serving.disk().iothreads() {
            let (export, pool) = (export.to_owned(), pool.name().to_owned());
            return Err(ControlError::Pooled { export, pool });
        }
        let missing = || ModelError::NoObject(iothread.to_owned());
        let to = self.iothreads.get(iothread).cloned().ok_or_else(missing)?;
        let mut sources = self.sources_of(export).into_iter();
        let source = sources.find(|source| source.name().queue == queue);
        let idle = || ControlError::NotRunning { export: export.to_owned(), queue };
        source.ok_or_else(idle)?.move_to(&to)?;
        Ok(())
    }

    fn sources_of(&self, export: &str) -> Vec<Arc<PlacedSource>> {
        let sources = self.sources().into_iter();
        sources.filter(|source| source.name().export == export).collect()
    }
}

/// A ring that cannot be moved now stays where it is; its client may just be leaving.
fn move_source(source: &PlacedSource, to: &Arc<Iothread>) {
    if let Err(error) = source.move_to(to) {
        let name = source.name();
        tracing::warn!("export {}: queue {} stays: {error}", name.export, name.queue);
    }
}
