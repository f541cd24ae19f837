//! One named bitmap: its bits, whether it records, who uses it.

use std::sync::Arc;

use super::{BitmapInfo, BitmapRefusal, Persistence, Recording, StoredBitmap};
use crate::{DirtyBitmap, Granularity};

/// A bitmap with a name.
#[derive(Debug)]
pub(super) struct NamedBitmap {
    name: String,
    contents: Contents,
    recording: Recording,
    persistence: Persistence,
    used: Use,
}

/// What a bitmap has.
#[derive(Debug)]
pub(super) enum Contents {
    /// Bits.
    Bits(Arc<DirtyBitmap>),
    /// Nothing to be trusted: it was not stored when its image was used last.
    Inconsistent(Granularity),
}

/// Who uses a bitmap.
#[derive(Debug)]
pub(super) enum Use {
    /// Nobody.
    Free,
    /// An export or a job.
    Busy,
    /// A job, which has it as it was at an instant; what is changed since then is recorded here, or not at all.
    Frozen(Arc<DirtyBitmap>, Recording),
}

impl NamedBitmap {
    pub(super) fn new(
        name: String,
        contents: Contents,
        recording: Recording,
        persistence: Persistence,
    ) -> Self {
        Self { name, contents, recording, persistence, used: Use::Free }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// In which bits changes are recorded now.
    pub(super) fn records_in(&self) -> Option<&Arc<DirtyBitmap>> {
        match (&self.used, &self.contents, self.recording) {
            (Use::Frozen(successor, Recording::On), _, _) => Some(successor),
            (Use::Free | Use::Busy, Contents::Bits(bits), Recording::On) => Some(bits),
            (Use::Frozen(_, Recording::Off), _, _)
            | (Use::Free | Use::Busy, Contents::Inconsistent(_), _)
            | (Use::Free | Use::Busy, Contents::Bits(_), Recording::Off) => None,
        }
    }

    pub(super) fn granularity(&self) -> Granularity {
        match &self.contents {
            Contents::Bits(bits) => bits.granularity(),
            Contents::Inconsistent(granularity) => *granularity,
        }
    }

    /// What is known of it but how many bytes are dirty, and its bits.
    pub(super) fn describe(&self) -> (BitmapInfo, Option<Arc<DirtyBitmap>>) {
        let (bits, is_inconsistent) = match &self.contents {
            Contents::Bits(bits) => (Some(Arc::clone(bits)), false),
            Contents::Inconsistent(_) => (None, true),
        };
        let recording = match &self.used {
            Use::Frozen(_, recording) => *recording,
            Use::Free | Use::Busy if is_inconsistent => Recording::Off,
            Use::Free | Use::Busy => self.recording,
        };
        let info = BitmapInfo {
            name: self.name.clone(),
            count: 0,
            granularity: self.granularity(),
            recording,
            is_busy: !matches!(self.used, Use::Free),
            persistence: self.persistence,
            is_inconsistent,
        };
        (info, bits)
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistence == Persistence::Kept
    }

    /// As it is to be stored, if it is.
    pub(super) fn stored(&self) -> Option<StoredBitmap> {
        self.is_persistent().then(|| self.contents().1)
    }

    /// What it has, and whether that is kept.
    pub(super) fn contents(&self) -> (Persistence, StoredBitmap) {
        let bits = match &self.contents {
            Contents::Bits(bits) => Some(Arc::clone(bits)),
            Contents::Inconsistent(_) => None,
        };
        let (name, granularity) = (self.name.clone(), self.granularity());
        let recording = self.recording;
        (self.persistence, StoredBitmap { name, granularity, recording, bits })
    }

    /// All bits that it has, its own first.
    pub(super) fn all_bits(&self) -> impl Iterator<Item = &Arc<DirtyBitmap>> {
        let own = match &self.contents {
            Contents::Bits(bits) => Some(bits),
            Contents::Inconsistent(_) => None,
        };
        let successor = match &self.used {
            Use::Frozen(successor, _) => Some(successor),
            Use::Free | Use::Busy => None,
        };
        own.into_iter().chain(successor)
    }

    /// Puts others in their places, in the order of [`Self::all_bits`].
    pub(super) fn put_all(&mut self, bits: Vec<DirtyBitmap>) {
        let mut bits = bits.into_iter().map(Arc::new);
        if let Contents::Bits(own) = &mut self.contents {
            *own = bits.next().expect("as many as there were");
        }
        if let Use::Frozen(successor, _) = &mut self.used {
            *successor = bits.next().expect("as many as there were");
        }
    }

    /// Its bits, if they can be trusted.
    pub(super) fn bits(&self) -> Result<&Arc<DirtyBitmap>, BitmapRefusal> {
        match &self.contents {
            Contents::Bits(bits) => Ok(bits),
            Contents::Inconsistent(_) => Err(BitmapRefusal::Inconsistent(self.name.clone())),
        }
    }

    pub(super) fn set_bits(&mut self, bits: Arc<DirtyBitmap>) {
        self.contents = Contents::Bits(bits);
    }

    /// Whether nobody uses it.
    pub(super) fn check_free(&self) -> Result<(), BitmapRefusal> {
        match self.used {
            Use::Free => Ok(()),
            Use::Busy | Use::Frozen(..) => Err(BitmapRefusal::Busy(self.name.clone())),
        }
    }

    /// Whether nobody uses it, and its bits can be trusted.
    pub(super) fn check_usable(&self) -> Result<(), BitmapRefusal> {
        self.check_free()?;
        self.bits().map(drop)
    }

    /// Has it record or not; gives what it was.
    pub(super) fn set_recording(&mut self, to: Recording) -> Recording {
        std::mem::replace(&mut self.recording, to)
    }

    /// Somebody uses it from now on, or nobody; gives who did.
    pub(super) fn set_use(&mut self, to: Use) -> Use {
        std::mem::replace(&mut self.used, to)
    }

    /// Whether it records itself.
    pub(super) fn recording(&self) -> Recording {
        self.recording
    }
}
