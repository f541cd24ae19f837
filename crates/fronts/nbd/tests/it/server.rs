//! Iothreads with a disk, and connections to it.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use block::{Access, ByteCount, Capacity, DiscardPolicy, DiskSize, Durability, Node, SystemClock};
use disk::{FileNode, NullNode, ReadContent};
use iothread::{
    Iothread, PlacedFrontEnd, PollSettings, ProcessResources, SourceName, SourceObserver,
    SourceRegistry,
};
use kernel_io::{Caching, FileTable, Notifier, OpenOptions, ReactorChoice};
use nbd::{
    BlockSizes, ConnectionEnd, ExportCatalog, ExportOffer, ExportSummary, HeaderStyle,
    MetaContexts, NbdConnection, NbdConnectionSetup, NbdTransport, Negotiation,
    NegotiationProgress, NegotiationStep, ProtocolString, TlsPolicy, TransmissionFlags,
    TransmissionSettings,
};
use request_path::FrontEndSource;
use rustls::{ServerConnection, Stream};

use crate::certificates;
use crate::client::Client;

/// Runs a test on both reactors.
pub(crate) fn on_both(test: impl Fn(ReactorChoice)) {
    test(ReactorChoice::Any);
    test(ReactorChoice::EpollOnly);
}

/// Keeps what a connection's owner is told.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<Vec<ConnectionEnd>>);

impl SourceObserver for Ends {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        let end = fault.downcast_ref::<ConnectionEnd>().expect("a connection ends in one way");
        self.0.lock().unwrap().push(end.clone());
    }

    fn kicked_while_empty(&self) {
        panic!("nobody kicks");
    }
}

impl Ends {
    pub(crate) fn get(&self) -> Vec<ConnectionEnd> {
        self.0.lock().unwrap().clone()
    }
}

/// Iothreads with a disk.
pub(crate) struct Server {
    pub(crate) iothreads: [Arc<Iothread>; 2],
    pub(crate) node: Arc<dyn Node>,
    pub(crate) size: Arc<Capacity>,
    pub(crate) access: Access,
    pub(crate) tls: TlsPolicy,
    pub(crate) contexts: MetaContexts,
    pub(crate) ends: Arc<Ends>,
    is_closing: AtomicBool,
    _image: Option<tempfile::TempPath>,
}

impl Server {
    fn with(
        files: &Arc<FileTable>,
        reactors: ReactorChoice,
        node: Arc<dyn Node>,
        image: Option<tempfile::TempPath>,
    ) -> Self {
        let sources = Arc::new(SourceRegistry::default());
        let iothreads = [PollSettings::default(), PollSettings::OFF].map(|settings| {
            let process = ProcessResources {
                files: Arc::clone(files),
                clock: Arc::new(SystemClock),
                sources: Arc::clone(&sources),
                reactors,
                spare_rings: Arc::default(),
                confine: None,
                alarm: None,
            };
            Arc::new(Iothread::spawn("t", process, settings).unwrap())
        });
        let size = Arc::new(Capacity::new(node.size()));
        let (access, ends) = (node.access(), Arc::new(Ends::default()));
        let contexts = MetaContexts::default();
        let is_closing = AtomicBool::new(false);
        let tls = TlsPolicy::None;
        Self { iothreads, node, size, access, tls, contexts, ends, is_closing, _image: image }
    }

    /// A file of that many bytes.
    pub(crate) fn of_file(reactors: ReactorChoice, bytes: u64) -> Self {
        let files = Arc::new(FileTable::default());
        let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        image.as_file().set_len(bytes).unwrap();
        let options = OpenOptions {
            caching: Caching::Direct,
            ..OpenOptions::regular(image.path(), Access::ReadWrite)
        };
        let node = FileNode::open("disk", &options, DiscardPolicy::Unmap, &files).unwrap();
        Self::with(&files, reactors, Arc::new(node), Some(image.into_temp_path()))
    }

    /// A disk that has nothing.
    pub(crate) fn of_null(reactors: ReactorChoice, bytes: u64) -> Self {
        let node = NullNode::new(
            "null",
            DiskSize(ByteCount(bytes)),
            Access::ReadWrite,
            ReadContent::Zeroes,
        );
        Self::with(&Arc::default(), reactors, Arc::new(node), None)
    }

    fn offer(&self) -> ExportOffer {
        ExportOffer {
            name: ProtocolString::new("disk").unwrap(),
            description: Some(ProtocolString::new("a disk for tests").unwrap()),
            size: self.node.size(),
            access: self.access,
            block_sizes: BlockSizes::of_block(512),
            allocation_depth: true,
            bitmaps: Vec::new(),
            multi_conn: true,
        }
    }

    pub(crate) fn settings(&self, style: HeaderStyle) -> TransmissionSettings {
        TransmissionSettings {
            export: ProtocolString::new("disk").unwrap(),
            size: self.node.size(),
            access: self.access,
            style,
            contexts: self.contexts,
            block_sizes: BlockSizes::of_block(512),
            flags: TransmissionFlags::of(&self.offer(), style, self.contexts),
        }
    }

    pub(crate) fn connection(
        &self,
        socket: UnixStream,
        settings: TransmissionSettings,
        received: Vec<u8>,
        transport: NbdTransport,
    ) -> NbdConnection {
        let (socket, size) = (socket.into(), Arc::clone(&self.size));
        let durability = Durability::Cached;
        let setup = NbdConnectionSetup {
            socket,
            settings,
            received,
            size,
            durability,
            transport,
            bitmaps: Arc::new([]),
        };
        NbdConnection::new(setup).unwrap()
    }

    pub(crate) fn place(
        &self,
        connection: NbdConnection,
        iothread: usize,
    ) -> PlacedFrontEnd<NbdConnection> {
        let (owner, nodes) = (Arc::new(Notifier::new().unwrap()), vec![Arc::clone(&self.node)]);
        let source = FrontEndSource::new(connection, nodes, owner);
        let name = SourceName { export: "test".to_owned(), queue: 0 };
        let observer = Arc::clone(&self.ends) as _;
        PlacedFrontEnd::on(&self.iothreads[iothread], name, source, observer).unwrap()
    }

    /// A client, and its connection on the first iothread.
    pub(crate) fn connect(&self, style: HeaderStyle) -> (Client, PlacedFrontEnd<NbdConnection>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (settings, transport) = (self.settings(style), NbdTransport::Plain);
        let connection = self.connection(ours, settings, Vec::new(), transport);
        (Client::new(theirs, style), self.place(connection, 0))
    }

    /// The same through TLS.
    pub(crate) fn connect_tls(
        &self,
        style: HeaderStyle,
    ) -> (Client, PlacedFrontEnd<NbdConnection>) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut server, mut client) = (certificates::server(), certificates::client());
        std::thread::scope(|scope| {
            let handshake = scope.spawn(|| client.complete_io(&mut theirs).unwrap());
            server.complete_io(&mut ours).unwrap();
            handshake.join().unwrap();
        });
        let (settings, transport) = (self.settings(style), NbdTransport::Tls(Box::new(server)));
        let connection = self.connection(ours, settings, Vec::new(), transport);
        (Client::with_tls(theirs, style, client), self.place(connection, 0))
    }
}

impl ExportCatalog for Server {
    fn list(&self) -> Vec<ExportSummary> {
        let Some(ExportOffer { name, description, .. }) = self.find("") else { return Vec::new() };
        vec![ExportSummary { name, description }]
    }

    fn find(&self, name: &str) -> Option<ExportOffer> {
        ["", "disk"].contains(&name).then(|| self.offer())
    }
}

/// A server on a socket, for clients nobody here wrote. Connections alternate between its iothreads.
pub(crate) struct Listening {
    pub(crate) path: PathBuf,
    pub(crate) server: Arc<Server>,
    accepts: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Listening {
    pub(crate) fn new(server: Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = Arc::new(server);
        let accepts = {
            let server = Arc::clone(&server);
            std::thread::spawn(move || accept_all(&listener, &server))
        };
        Self { path, server, accepts: Some(accepts), _directory: directory }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.path.display())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.server.is_closing.store(true, Ordering::SeqCst);
        // It is looked at with the next client.
        drop(UnixStream::connect(&self.path).unwrap());
        if let Some(accepts) = self.accepts.take() {
            accepts.join().unwrap();
        }
    }
}

fn accept_all(listener: &UnixListener, server: &Arc<Server>) {
    let mut threads = Vec::new();
    for (number, socket) in listener.incoming().enumerate() {
        let (socket, served) = (socket.unwrap(), Arc::clone(server));
        // One that waits in its handshake keeps nobody else from theirs.
        let thread = std::thread::spawn(move || {
            let connection = negotiate(socket, &served)?;
            Some(served.place(connection, number % 2))
        });
        threads.push(thread);
        if server.is_closing.load(Ordering::SeqCst) {
            break;
        }
    }
    for placed in threads.into_iter().filter_map(|thread| thread.join().unwrap()) {
        placed.stop();
    }
}

/// The handshake of a connection; none if it did not end with the transmission.
fn negotiate(mut socket: UnixStream, server: &Arc<Server>) -> Option<NbdConnection> {
    let mut negotiation = Negotiation::new(server.tls);
    let mut tls: Option<Box<ServerConnection>> = None;
    socket.write_all(&negotiation.greeting()).ok()?;
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = match &mut tls {
            Some(tls) => Stream::new(&mut **tls, &mut socket).read(&mut bytes),
            None => socket.read(&mut bytes),
        };
        let count = count.ok().filter(|count| *count > 0)?;
        let NegotiationProgress { output, step } = negotiation.receive(&bytes[..count], &**server);
        match &mut tls {
            Some(tls) => Stream::new(&mut **tls, &mut socket).write_all(&output).ok()?,
            None => socket.write_all(&output).ok()?,
        }
        match step {
            NegotiationStep::More => {}
            NegotiationStep::StartTls => {
                let mut session = certificates::server();
                session.complete_io(&mut socket).ok()?;
                negotiation.encrypted();
                tls = Some(Box::new(session));
            }
            NegotiationStep::Aborted | NegotiationStep::Failed(_) => {
                return None;
            }
            NegotiationStep::Transmission { settings, received } => {
                let transport = tls.map_or(NbdTransport::Plain, NbdTransport::Tls);
                return Some(server.connection(socket, settings, received, transport));
            }
        }
    }
}
