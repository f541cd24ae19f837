//! Changes the graph below exports while their guests run.
//!
//! The order: what would go wrong is looked for first; what the exports above need of the new node is
//! claimed, so that nobody else can have it; what was written is made durable; everything that stands above is
//! drained on all iothreads; the node is replaced; what the exports need of the graph with it is claimed; lanes are
//! opened again, on all iothreads or, if one cannot, on the old node; requests go on; what the exports no longer need
//! is given back.
//!
//! Invariants: a change that fails leaves the graph, the claims and the guests as they were. No export is
//! without its claim at any time, and none is in flight on a node without one. A file may take the place of another
//! one on the same image, opened in another way: its locks are then never missing, and both are never written at once.
//! Threads: the first one; sessions go on meanwhile and wait at most for the drain.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::{Claim, ClaimError, LaneError, Rights, SystemClock};
use iothread::{Drained, GaveUp};
use kernel_io::Succession;

use super::{Built, Claimed};
use crate::device::Offer;
use crate::export::Export;
use crate::graph::ChangeFault;
use crate::holding::{Holding, Still};
use crate::permissions::User;

/// How long a change waits for requests in flight: as long as for a lock.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// The graph could not be changed: it is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It may not be.
    #[error(transparent)]
    Fault(#[from] ChangeFault),
    /// A session is waiting for the image.
    #[error("export {export} is being activated or inactivated just now")]
    Activation {
        /// The export.
        export: String,
    },
    /// The new node cannot be had.
    #[error("export {export}")]
    Claim {
        /// The export that needs it.
        export: String,
        /// Why.
        #[source]
        source: ClaimError,
    },
    /// What is in flight on a disk that hangs cannot be waited for.
    #[error(transparent)]
    Busy(#[from] GaveUp),
    /// What was written might be lost with the old node.
    #[error("export {export}: a flush failed")]
    Flush {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The size of the file that takes the place of another one could not be had.
    #[error("{}: cannot ask for its size", path.display())]
    Measure {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An iothread cannot use the new node.
    #[error("iothread {iothread}")]
    Lane {
        /// Which one.
        iothread: String,
        /// Why.
        #[source]
        source: LaneError,
    },
}

/// An export above the change, and what it holds.
struct Above<'a> {
    offer: &'a Offer,
    rights: Rights,
    held: Held<'a>,
    /// What is held of the new node besides.
    ahead: Option<Claim>,
    /// What is held in the graph as it is with the change.
    after: Option<Claim>,
}

enum Held<'a> {
    Always(&'a mut Option<Claim>),
    OnDemand(Still<'a>),
}

impl Above<'_> {
    fn claim(&mut self) -> &mut Option<Claim> {
        match &mut self.held {
            Held::Always(claim) => claim,
            Held::OnDemand(still) => still.claim(),
        }
    }

    fn export(&self) -> String {
        self.offer.id.clone()
    }

    fn flush(&mut self) -> Result<(), ChangeError> {
        let export = self.export();
        match self.claim() {
            Some(claim) => claim.flush().map_err(|source| ChangeError::Flush { export, source }),
            None => Ok(()),
        }
    }

    /// Claims what the graph of now needs, besides what is held.
    fn claim_after(&mut self) -> Result<(), ChangeError> {
        let export = self.export();
        if self.claim().is_some() {
            let claimed = self.offer.node.claim(self.rights);
            let failed = |source| ChangeError::Claim { export, source };
            self.after = Some(claimed.map_err(failed)?);
        }
        Ok(())
    }

    /// Holds what the graph of now needs, and no more.
    fn settle(&mut self) {
        if let Some(after) = self.after.take() {
            *self.claim() = Some(after);
            self.ahead = None;
        }
    }
}

/// What there is to know of these exports for a change below them.
fn aboves<'a>(
    offers: impl Iterator<Item = &'a Offer>,
    claims: &'a mut [Claimed],
) -> Result<Vec<Above<'a>>, ChangeError> {
    let mut always: HashMap<&str, (Rights, &mut Option<Claim>)> = claims
        .iter_mut()
        .map(|claimed| (claimed.export.as_str(), (claimed.rights, &mut claimed.claim)))
        .collect();
    let above = |offer: &'a Offer| {
        let (rights, held) = match &offer.holding {
            Holding::Always => {
                let held = always.remove(offer.id.as_str());
                let (rights, claim) = held.expect("an export that was started has its claim");
                (rights, Held::Always(claim))
            }
            Holding::WhileServed(on_demand) => {
                let busy = || ChangeError::Activation { export: offer.id.clone() };
                let still = on_demand.still().ok_or_else(busy)?;
                (still.rights(), Held::OnDemand(still))
            }
        };
        Ok(Above { offer, rights, held, ahead: None, after: None })
    };
    offers.map(above).collect()
}

impl Built {
    /// Puts the node of that name in the place below a node or an export, while guests run. Both must hold the
    /// same bytes; the graph does not look at them. Blocks, as long as the longest request in flight, or [`DRAIN_MAX`].
    #[cfg_attr(not(test), expect(dead_code, reason = "what QMP will change the graph by"))]
    pub(crate) fn replace(&mut self, user: &User, key: &str, by: &str) -> Result<(), ChangeError> {
        let change = self.graph.change(user, key, by)?;
        let Self { exports, claims, iothreads, graph, files, .. } = self;
        let hand_over = files.hand_over(change.successions.clone());
        let offers = exports.iter().map(Export::offer);
        let above = offers.filter(|offer| change.exports.contains(&offer.id));
        let mut aboves = aboves(above, claims)?;
        for above in &mut aboves {
            if above.claim().is_some() {
                let claimed = change.node.claim(above.rights);
                let export = above.export();
                let failed = |source| ChangeError::Claim { export, source };
                above.ahead = Some(claimed.map_err(failed)?);
            }
        }
        // Almost all of it while guests run, and the rest, which is soon done, while they wait.
        aboves.iter_mut().try_for_each(Above::flush)?;
        let nodes = aboves.iter().map(|above| Arc::clone(&above.offer.node)).collect();
        let iothreads = iothreads.values().cloned().collect();
        let drained = Drained::begin(iothreads, nodes, DRAIN_MAX, &SystemClock)?;
        aboves.iter_mut().try_for_each(Above::flush)?;
        for Succession { before, after } in &change.successions {
            let path = before.path().to_owned();
            after.measure().map_err(|source| ChangeError::Measure { path, source })?;
        }
        let before = change.place.replace(Arc::clone(&change.node));
        if let Err(error) = aboves.iter_mut().try_for_each(Above::claim_after) {
            change.place.replace(before);
            return Err(error);
        }
        if let Err(refused) = drained.end() {
            change.place.replace(before);
            // If this fails too, it is said, and requests fail.
            drop(refused.drained);
            let (iothread, source) = (refused.iothread, refused.source);
            return Err(ChangeError::Lane { iothread, source });
        }
        graph.changed(change);
        for above in &mut aboves {
            above.offer.size.stands_on(graph.files_below_export(&above.offer.id));
            above.settle();
        }
        drop((aboves, hand_over));
        tracing::info!("{user}: its child '{key}' is node {by} now");
        Ok(())
    }
}
