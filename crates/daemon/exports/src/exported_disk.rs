//! A disk on offer: the part of an export that is the same for all protocols.
//!
//! Where it stands: between a node of the graph and the protocol of an export, which makes sources of it.
//!
//! Threads: the first one makes it; those of the export's clients read it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use block::{Access, Clock, Node, Rights};
use graph::{Activity, StorageFiles};
use iothread::{Iothread, IothreadPool};

use crate::activation::ExportClaim;
use crate::export_size::ExportSize;

/// A disk as an export offers it, shared by all its clients: node, claim, size, iothreads.
#[derive(Debug)]
pub struct ExportedDisk {
    /// The export's name.
    pub id: String,
    /// The top of the graph below it.
    pub node: Arc<dyn Node>,
    /// What clients may do.
    pub access: Access,
    /// What it holds of the node, and when.
    pub claim: ExportClaim,
    /// How large the disk is now, and who is told of that.
    pub size: ExportSize,
    /// Who serves its sources.
    iothreads: Mutex<ServingIothreads>,
    /// Whether its guest is being migrated.
    pub migration: Arc<MigrationFlag>,
}

/// Whether the guest of an export is being migrated: what is written is logged, and its queues stay where they are.
#[derive(Debug, Default)]
pub struct MigrationFlag(AtomicBool);

impl MigrationFlag {
    pub(crate) fn set(&self, is_migrated: bool) {
        // Whoever moves a queue because it sees this late does no harm.
        self.0.store(is_migrated, Ordering::Relaxed);
    }

    /// Whether it is so now.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The iothreads that serve the sources of an export.
#[derive(Debug, Clone)]
pub enum ServingIothreads {
    /// These, round-robin; never empty.
    Named(Vec<Arc<Iothread>>),
    /// Those of a pool. A source begins where the pool says, and is moved.
    Pool(Arc<IothreadPool>),
}

impl ServingIothreads {
    /// Where a source begins: a queue, or a connection.
    pub fn of_queue(&self, queue: u16) -> Arc<Iothread> {
        match self {
            Self::Named(all) => Arc::clone(&all[usize::from(queue) % all.len()]),
            Self::Pool(pool) => pool.home(),
        }
    }
}

impl fmt::Display for ServingIothreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(all) => {
                let names: Vec<&str> = all.iter().map(|iothread| iothread.name()).collect();
                f.write_str(&names.join(", "))
            }
            Self::Pool(pool) => write!(f, "pool {}", pool.name()),
        }
    }
}

/// What a disk is offered with.
#[derive(Debug)]
pub struct DiskParts {
    /// The top of the graph below the export.
    pub node: Arc<dyn Node>,
    /// What clients may do.
    pub access: Access,
    /// The bytes of which its size is a multiple.
    pub logical_block: u32,
    /// Whether the node is held from the start.
    pub activity: Activity,
    /// The files below the node.
    pub files: StorageFiles,
    /// Who serves the sources.
    pub iothreads: ServingIothreads,
    /// What waits and log lines go by.
    pub clock: Arc<dyn Clock>,
}

impl ExportedDisk {
    /// A disk that is not claimed and not offered yet. Says if there is nothing on it.
    pub fn new(id: &str, parts: DiskParts) -> Self {
        let DiskParts { node, access, logical_block, activity, files, iothreads, clock } = parts;
        let size = ExportSize::new(id, &node, logical_block, files);
        size.warn_if_empty();
        Self {
            id: id.to_owned(),
            access,
            claim: ExportClaim::new(id, &node, Rights::of_user(access), activity, &clock),
            node,
            size,
            iothreads: Mutex::new(iothreads),
            migration: Arc::default(),
        }
    }

    /// What it claims of its node.
    pub fn rights(&self) -> Rights {
        Rights::of_user(self.access)
    }

    /// Who serves the sources that are started from now on.
    pub fn iothreads(&self) -> ServingIothreads {
        self.iothreads.lock().expect("no holder of this lock panics").clone()
    }

    /// Sources that are started from now on are served by these. Those that run stay where they are.
    pub fn set_iothreads(&self, iothreads: ServingIothreads) {
        *self.iothreads.lock().expect("no holder of this lock panics") = iothreads;
    }
}
