//! What other threads have for the first one: clients, requests, and jobs that are over.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use control::JobNews;
use kernel_io::Notifier;
use qcow2::Corruption;
use serde_json::Value;

use crate::client::Client;
use crate::jobs::JobSerial;
use crate::request::Request;

/// A message to the first thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A client has come, and wants to hear of events.
    Connected(Arc<Client>),
    /// A request is to be carried out and answered.
    Request { client: Arc<Client>, id: Option<Value>, request: Request },
    /// A change went beyond the write threshold of a node.
    ThresholdExceeded { node: String, amount: u64, threshold: u64 },
    /// An image turned out to be damaged.
    Corrupted(Corruption),
    /// A job without disks is over, well or with that error.
    JobEnded { id: String, error: Option<String> },
    /// Something has happened to a block job.
    JobNews { id: String, serial: JobSerial, news: JobNews },
}

/// Where the first thread takes messages.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Receiver<Message>,
    sender: InboxSender,
}

/// Where other threads put them.
#[derive(Debug, Clone)]
pub(crate) struct InboxSender {
    messages: Sender<Message>,
    bell: Arc<Notifier>,
}

impl Inbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (messages, receiver) = channel();
        let sender = InboxSender { messages, bell: Arc::new(Notifier::new()?) };
        Ok(Self { messages: receiver, sender })
    }

    pub(crate) fn sender(&self) -> InboxSender {
        self.sender.clone()
    }

    /// Rung when there is a message.
    pub(crate) fn bell(&self) -> &Notifier {
        &self.sender.bell
    }

    /// The next message, if there is one.
    pub(crate) fn take(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }
}

impl InboxSender {
    /// Puts a message, and wakes the first thread.
    pub(crate) fn send(&self, message: Message) {
        // Nobody takes it any more when the daemon ends.
        if self.messages.send(message).is_ok() {
            self.bell.wake();
        }
    }
}
