//! Who uses a bitmap for longer than a command: an export shows it, a job copies what is dirty in it.

use std::sync::Arc;

use super::{BitmapRefusal, NodeBitmaps, Recording, Use};
use crate::DirtyBitmap;

/// A bitmap that an export or a job uses: nobody else changes it. Dropped, it is free again.
#[derive(Debug)]
pub struct BusyBitmap {
    of: Arc<NodeBitmaps>,
    name: String,
}

/// A bitmap as it was at an instant; what is changed since then is recorded beside it. Dropped, it is one bitmap again that has
/// both, as after a backup that failed.
#[derive(Debug)]
#[must_use = "dropped, it has what was changed since then, too"]
pub struct FrozenBitmap {
    of: Arc<NodeBitmaps>,
    name: String,
    bits: Arc<DirtyBitmap>,
}

impl NodeBitmaps {
    /// Takes a bitmap into use.
    pub fn occupy(self: &Arc<Self>, name: &str) -> Result<BusyBitmap, BitmapRefusal> {
        let mut state = self.state();
        let bitmap = state.find_mut(name)?;
        bitmap.check_usable()?;
        bitmap.set_use(Use::Busy);
        Ok(BusyBitmap { of: Arc::clone(self), name: name.to_owned() })
    }

    /// Takes a bitmap into use, to remove it: whether its bits can be trusted does not matter.
    pub fn occupy_to_remove(self: &Arc<Self>, name: &str) -> Result<BusyBitmap, BitmapRefusal> {
        let mut state = self.state();
        let bitmap = state.find_mut(name)?;
        bitmap.check_free()?;
        bitmap.set_use(Use::Busy);
        Ok(BusyBitmap { of: Arc::clone(self), name: name.to_owned() })
    }

    /// Whether a bitmap records.
    pub fn is_recording(&self, name: &str) -> Result<bool, BitmapRefusal> {
        self.state().find(name).map(|bitmap| bitmap.recording() == Recording::On)
    }

    /// Takes a bitmap as it is at this instant. No change of the node is in flight.
    pub fn freeze(self: &Arc<Self>, name: &str) -> Result<FrozenBitmap, BitmapRefusal> {
        let mut state = self.state();
        let size = state.size;
        let found = state.find(name)?;
        found.check_usable()?;
        let granularity = found.granularity();
        state.check_memory(DirtyBitmap::memory_of(size, granularity))?;
        let successor = Arc::new(DirtyBitmap::new(size, granularity)?);
        let bitmap = state.find_mut(name)?;
        let bits = Arc::clone(bitmap.bits()?);
        let recording = bitmap.set_recording(Recording::Off);
        bitmap.set_use(Use::Frozen(successor, recording));
        self.changed(&state);
        Ok(FrozenBitmap { of: Arc::clone(self), name: name.to_owned(), bits })
    }

    /// What was frozen is one again: with what it had, or without.
    fn thaw(&self, name: &str, keeps: Kept) {
        let mut state = self.state();
        let Ok(bitmap) = state.find_mut(name) else { return };
        let Use::Frozen(successor, recording) = bitmap.set_use(Use::Free) else { return };
        bitmap.set_recording(recording);
        if let (Kept::Both, Ok(bits)) = (keeps, bitmap.bits()) {
            // Into the one that lanes record in by now: so what they record meanwhile is not lost.
            successor.merge(bits);
        }
        bitmap.set_bits(successor);
        self.changed(&state);
    }
}

/// What a frozen bitmap has when it is one again.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// All of it.
    Both,
    /// What was changed since it was frozen.
    Successor,
}

impl BusyBitmap {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bits, as many as the node has by now.
    pub fn bits(&self) -> Result<Arc<DirtyBitmap>, BitmapRefusal> {
        self.of.bits(&self.name)
    }
}

impl Drop for BusyBitmap {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if let Ok(bitmap) = state.find_mut(&self.name) {
            bitmap.set_use(Use::Free);
        }
    }
}

impl FrozenBitmap {
    /// What was dirty at that instant.
    pub fn bits(&self) -> &Arc<DirtyBitmap> {
        &self.bits
    }

    /// What was dirty then was dealt with: the bitmap has from now on what was changed since (QEMU's abdicate).
    pub fn succeed(self) {
        self.of.thaw(&self.name, Kept::Successor);
    }

    /// The same, but for what is marked in that bitmap.
    pub fn succeed_but(self, left: &DirtyBitmap) {
        self.of.thaw(&self.name, Kept::Successor);
        if let Ok(bits) = self.of.bits(&self.name) {
            bits.merge(left);
        }
    }
}

impl Drop for FrozenBitmap {
    fn drop(&mut self) {
        // Does nothing after `succeed`.
        self.of.thaw(&self.name, Kept::Both);
    }
}
