//! An NBD export: a disk with a name, and the connections that use it.
//!
//! Invariants: after [`NbdExport::begin_stop`] no connection begins; the export is gone when the last one has ended, and
//! with it all of its requests.
//! Threads: the first one makes and ends it; those of connections come and go. Limits: 65535 connections.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bitmaps::BusyBitmap;
use block::{Durability, LogRateLimit};
use exports::{ExportedDisk, NbdExportOptions};
use nbd::{BlockSizes, ExportOffer, ExportSummary, ProtocolString};

use crate::catalog::NbdCatalog;
use crate::connection::ConnectionEnd;

/// A running NBD export. Dropped, it is stopped: its connections are closed when their requests are over.
#[derive(Debug)]
pub struct NbdExport {
    shared: Arc<ExportShared>,
    catalog: Arc<NbdCatalog>,
}

/// What the handle of an export and its connections share.
#[derive(Debug)]
pub(crate) struct ExportShared {
    pub(crate) disk: Arc<ExportedDisk>,
    pub(crate) durability: Durability,
    /// How often it is said that clients come and go.
    pub(crate) rate: Mutex<LogRateLimit>,
    name: ProtocolString,
    description: Option<ProtocolString>,
    allocation_depth: bool,
    /// The bitmaps that clients may ask about: nobody changes them meanwhile.
    pub(crate) bitmaps: Arc<[BusyBitmap]>,
    connections: Mutex<Connections>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

/// The connections of an export.
#[derive(Debug, Default)]
struct Connections {
    /// Who is told to end, by number.
    all: BTreeMap<u16, Sender<ConnectionEnd>>,
    is_over: bool,
}

impl NbdExport {
    /// Offers a disk that was claimed under the name of these options, which is free.
    pub fn start(
        disk: Arc<ExportedDisk>,
        options: &NbdExportOptions,
        bitmaps: Arc<[BusyBitmap]>,
        durability: Durability,
        catalog: &Arc<NbdCatalog>,
    ) -> Self {
        let string = |text: &String| ProtocolString::new(text.as_str()).expect("it was checked");
        let shared = Arc::new(ExportShared {
            disk,
            durability,
            rate: Mutex::default(),
            name: string(&options.name),
            description: options.description.as_ref().map(string),
            allocation_depth: options.allocation_depth,
            bitmaps,
            connections: Mutex::default(),
            ended: Condvar::new(),
        });
        catalog.enter(&shared);
        Self { shared, catalog: Arc::clone(catalog) }
    }

    /// The disk that it offers.
    pub fn disk(&self) -> &Arc<ExportedDisk> {
        &self.shared.disk
    }

    /// What clients call it.
    pub fn name(&self) -> &str {
        self.shared.name.as_str()
    }

    /// Whether a client is connected.
    pub fn has_client(&self) -> bool {
        !self.shared.connections().all.is_empty()
    }

    /// How many connections there are.
    pub fn clients(&self) -> usize {
        self.shared.connections().all.len()
    }

    /// Makes the export stop, without waiting for it: no new connection, and those that are there end when their requests
    /// are over.
    pub fn begin_stop(&self) {
        self.catalog.leave(&self.shared);
        let mut connections = self.shared.connections();
        connections.is_over = true;
        for end in connections.all.values() {
            // One that has ended hears nothing.
            let _gone = end.send(ConnectionEnd::Stopped);
        }
    }
}

impl Drop for NbdExport {
    fn drop(&mut self) {
        self.begin_stop();
        let is_used = |connections: &mut Connections| !connections.all.is_empty();
        let over = self.shared.ended.wait_while(self.shared.connections(), is_used);
        drop(over.expect("no holder of this lock panics"));
    }
}

/// A connection's place among those of its export, given back when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionNumber {
    export: Arc<ExportShared>,
    number: u16,
}

impl ConnectionNumber {
    pub(crate) fn get(&self) -> u16 {
        self.number
    }
}

impl Drop for ConnectionNumber {
    fn drop(&mut self) {
        self.export.connections().all.remove(&self.number);
        self.export.ended.notify_all();
    }
}

impl ExportShared {
    /// A connection begins, with the lowest number that is free; `end` is told if it has to end. None if the export ends.
    pub(crate) fn enter(self: &Arc<Self>, end: Sender<ConnectionEnd>) -> Option<ConnectionNumber> {
        let mut connections = self.connections();
        if connections.is_over {
            return None;
        }
        let number = (0..u16::MAX).find(|number| !connections.all.contains_key(number))?;
        connections.all.insert(number, end);
        Some(ConnectionNumber { export: Arc::clone(self), number })
    }

    pub(crate) fn name(&self) -> &ProtocolString {
        &self.name
    }

    pub(crate) fn summary(&self) -> ExportSummary {
        ExportSummary { name: self.name.clone(), description: self.description.clone() }
    }

    /// As a client is told of it now.
    pub(crate) fn offer(&self, multi_conn: bool) -> ExportOffer {
        let limits = self.disk.node.limits();
        let preferred = limits.physical_block.get().max(limits.discard_granularity.get());
        ExportOffer {
            name: self.name.clone(),
            description: self.description.clone(),
            size: self.disk.size.capacity().get(),
            access: self.disk.access,
            block_sizes: BlockSizes::of_block(exports::LOGICAL_BLOCK_BYTES)
                .preferring(preferred.max(4096)),
            allocation_depth: self.allocation_depth,
            bitmaps: self.bitmaps.iter().map(|it| it.name().to_owned()).collect(),
            multi_conn,
        }
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().expect("no holder of this lock panics")
    }
}
