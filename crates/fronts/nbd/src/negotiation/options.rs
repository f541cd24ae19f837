//! What the data of options mean.
//!
//! Invariants: what is returned was there as a whole and nothing behind it; strings are UTF-8 and not too long.
//! Limits: the caller's bound on the data of an option.

use crate::wire::{Fields, STRING_BYTES_MAX, reply};
use crate::{BITMAPS_MAX, ExportOffer, MetaContext, MetaContexts};

/// An option that is refused: `NBD_REP_ERR_*`, and a sentence for the person at the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptionRefusal(pub(super) u32, pub(super) &'static str);

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug)]
pub(super) struct ExportQuery<'a> {
    pub(super) name: &'a str,
    /// Numbers of 16 bits.
    wanted: &'a [u8],
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug)]
pub(super) struct MetaQuery<'a> {
    pub(super) export: &'a str,
    queries: Vec<&'a str>,
}

/// The contexts that can be chosen for an export.
pub(super) fn available(offer: &ExportOffer) -> MetaContexts {
    let contexts = MetaContexts::default().with(MetaContext::BaseAllocation);
    let depth = offer.allocation_depth.then_some(MetaContext::AllocationDepth);
    let bitmaps = (0..).zip(&offer.bitmaps).map(|(number, _)| MetaContext::DirtyBitmap(number));
    depth.into_iter().chain(bitmaps.take(BITMAPS_MAX)).fold(contexts, MetaContexts::with)
}

/// A string of the protocol.
pub(super) fn name(bytes: &[u8]) -> Option<&str> {
    let is_one = bytes.len() <= STRING_BYTES_MAX && !bytes.contains(&0);
    is_one.then(|| std::str::from_utf8(bytes).ok()).flatten()
}

/// A string behind its length.
fn string<'a>(fields: &mut Fields<'a>) -> Option<&'a str> {
    let count = usize::try_from(fields.u32()?).expect("64-bit host");
    name(fields.bytes(count)?)
}

const INVALID: OptionRefusal =
    OptionRefusal(reply::ERR_INVALID, "the data of the option are not of its form");

impl<'a> ExportQuery<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, OptionRefusal> {
        let mut fields = Fields(data);
        let mut parse = || {
            let name = string(&mut fields)?;
            let count = usize::from(fields.u16()?);
            Some(Self { name, wanted: fields.bytes(count * 2)? })
        };
        parse().filter(|_| fields.0.is_empty()).ok_or(INVALID)
    }

    /// Whether that information was asked for. Numbers that nobody knows, and repeated ones, make no difference.
    pub(super) fn wants(&self, information: u16) -> bool {
        self.wanted.chunks_exact(2).any(|wanted| wanted == information.to_be_bytes())
    }
}

impl<'a> MetaQuery<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, OptionRefusal> {
        let mut fields = Fields(data);
        let export = string(&mut fields).ok_or(INVALID)?;
        let count = fields.u32().ok_or(INVALID)?;
        let mut queries = Vec::new();
        // Each is four bytes long at least, so a number that is too large ends with the data.
        for _ in 0..count {
            queries.push(string(&mut fields).ok_or(INVALID)?);
        }
        fields.0.is_empty().then_some(Self { export, queries }).ok_or(INVALID)
    }

    /// Those that match a query, in which nothing behind the colon stands for all of its namespace; all if there is no
    /// query.
    pub(super) fn listed(&self, offer: &ExportOffer) -> MetaContexts {
        if self.queries.is_empty() {
            return available(offer);
        }
        let matches = |name: &str| {
            let is_namespace = |query: &str| query.ends_with(':') && name.starts_with(query);
            self.queries.iter().any(|query| *query == name || is_namespace(query))
        };
        filtered(offer, matches)
    }

    /// Those that are named. Other queries, of whatever namespace, choose nothing.
    pub(super) fn chosen(&self, offer: &ExportOffer) -> MetaContexts {
        filtered(offer, |name| self.queries.contains(&name))
    }
}

/// Those whose names match.
fn filtered(offer: &ExportOffer, matches: impl Fn(&str) -> bool) -> MetaContexts {
    let wanted = available(offer).iter().filter(|context| matches(&context.name(offer)));
    wanted.fold(MetaContexts::default(), MetaContexts::with)
}
