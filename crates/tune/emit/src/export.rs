//! How an export of ringloom is written on its command line.

use std::path::Path;

use plan::contender::Iothreads;
use storage::quote::keyval;

/// The pool of iothreads that ringloom has without being told.
pub const AUTO: &str = "auto";

/// How many iothreads are made beforehand.
pub fn named(iothreads: Iothreads) -> u16 {
    if iothreads.is_auto() { 0 } else { iothreads.count() }
}

/// A node on a socket.
#[derive(Debug)]
pub struct Export<'a> {
    /// The name of the export.
    pub id: &'a str,
    /// The node that is exported.
    pub node: &'a str,
    /// Whether it may be written.
    pub writable: bool,
    /// Where it listens.
    pub socket: &'a Path,
    /// How many it offers.
    pub queues: u16,
    /// Their ids.
    pub iothreads: Vec<String>,
}

impl Export<'_> {
    /// The value of `--export`. One iothread has the form that QEMU knows, several are a list.
    pub fn option(&self) -> String {
        let Self { id, node, queues, .. } = self;
        let writable = if self.writable { ",writable=on" } else { "" };
        let socket = keyval(&self.socket.to_string_lossy());
        let iothreads = match &self.iothreads[..] {
            [] => String::new(),
            [one] => format!(",iothread={one}"),
            several => {
                let numbered = several.iter().enumerate();
                numbered.map(|(place, id)| format!(",iothread.{place}={id}")).collect()
            }
        };
        format!(
            "vhost-user-blk,id={id},node-name={node}{writable},addr.type=unix,addr.path={socket},\
             num-queues={queues}{iothreads}"
        )
    }
}
