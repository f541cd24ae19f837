//! Replies to options, one behind the other.
//!
//! Limits: the caller looks at [`Replies::bytes`]; a reply is at most two strings long.

use crate::wire::{OPTION_REPLY_MAGIC, info, option, reply};
use crate::{BlockSizes, ExportSummary, TransmissionSettings};

/// What is to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies(Vec<u8>);

impl Replies {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Bytes that are no reply.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let count: usize = parts.iter().map(|part| part.len()).sum();
        self.raw(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.raw(&option.to_be_bytes());
        self.raw(&kind.to_be_bytes());
        self.raw(&u32::try_from(count).expect("a few strings").to_be_bytes());
        parts.iter().for_each(|part| self.raw(part));
    }

    pub(super) fn acknowledge(&mut self, option: u32) {
        self.reply(option, reply::ACK, &[]);
    }

    pub(super) fn error(&mut self, option: u32, kind: u32, text: &str) {
        self.reply(option, kind, &[text.as_bytes()]);
    }

    /// An entry of a list.
    pub(super) fn server(&mut self, export: &ExportSummary) {
        let name = export.name.as_str().as_bytes();
        let count = u32::try_from(name.len()).expect("a string is short").to_be_bytes();
        let description = export.description.as_ref().map_or("", |text| text.as_str());
        self.reply(option::LIST, reply::SERVER, &[&count, name, description.as_bytes()]);
    }

    pub(super) fn info(&mut self, option: u32, kind: u16, payload: &[u8]) {
        self.reply(option, reply::INFO, &[&kind.to_be_bytes(), payload]);
    }

    pub(super) fn block_sizes(&mut self, option: u32, sizes: BlockSizes) {
        let sizes = [sizes.minimum(), sizes.preferred(), sizes.maximum()];
        self.info(option, info::BLOCK_SIZE, sizes.map(u32::to_be_bytes).as_flattened());
    }

    /// Size and flags.
    pub(super) fn export(&mut self, option: u32, settings: &TransmissionSettings) {
        let (size, flags) = (settings.size.0.0.to_be_bytes(), settings.flags.bits().to_be_bytes());
        let kind = info::EXPORT.to_be_bytes();
        self.reply(option, reply::INFO, &[&kind, &size, &flags]);
    }

    pub(super) fn context(&mut self, option: u32, id: u32, name: &str) {
        self.reply(option, reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
    }
}
