//! The lane of a node whose storage is a channel, and nothing else.
//!
//! Where it stands in the life of a request: at its end. Each byte is on the channel at the same place as on the disk.
//!
//! Threads: belongs to one iothread, as its channel does.

use crate::{BatchPieces, ChannelId, LeafLane, Mapping, Operation, StoragePolicy, Target};

/// One iothread's handle on a disk behind a channel.
#[derive(Debug)]
pub struct ChannelLane {
    /// The channel, which was entered with the context of the lane.
    pub channel: ChannelId,
    /// What reaches it.
    pub policy: StoragePolicy,
}

impl LeafLane for ChannelLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let channel = self.channel;
        self.policy.answer(mapping, pieces, |offset| Target::Channel { channel, offset });
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let offset = self.policy.located(operation)?;
        Some(Target::Channel { channel: self.channel, offset })
    }
}
