//! The handshake of a connection, from its first byte to the transmission, as a state machine without I/O.
//!
//! Where it stands: before the life of the first request. Whoever has the socket sends what comes out and brings what the
//! client sends: [`Negotiation::greeting`] once, then [`Negotiation::receive`] for each part that was received, in order
//! and of any size, until the step is another one than [`NegotiationStep::More`].
//!
//! Invariants: what a client has agreed on before TLS counts for nothing after it. Contexts belong to the export that
//! they were chosen for, and are gone if another one is used.
//! Limits: [`OPTION_BYTES_MAX`], [`OPTIONS_MAX`], [`RECEIVED_BYTES_MAX`], [`SENT_BYTES_MAX`], and those of strings
//! ([`STRING_BYTES_MAX`](crate::wire::STRING_BYTES_MAX)). How long a client may take is up to whoever has the socket.
//! Not here: what an option's data mean (`options`), how replies look (`replies`).

mod faults;
mod options;
mod replies;
#[cfg(test)]
mod tests;

pub use self::faults::NegotiationFault;
use self::options::{ExportQuery, MetaQuery, OptionRefusal};
use self::replies::Replies;
use crate::wire::{
    EXPORT_NAME_ZEROES, Fields, INIT_MAGIC, OPTION_MAGIC, handshake, info, option, reply,
};
use crate::{
    ExportCatalog, ExportOffer, HeaderStyle, MetaContexts, ProtocolString, TransmissionSettings,
};

/// The most data of an option that are looked at: 15 queries for contexts of the longest kind. Of a longer option the data
/// are skipped.
pub const OPTION_BYTES_MAX: usize = 64 << 10;

/// The most options of a connection.
pub const OPTIONS_MAX: u32 = 1024;

/// The most bytes that a client may send before it has chosen an export, data that are skipped among them.
pub const RECEIVED_BYTES_MAX: u64 = 4 << 20;

/// How many bytes a call of [`Negotiation::receive`] may have to send before its last reply: a list of exports that is
/// longer is cut off, and a client that sends more options without waiting for the replies is not served.
pub const SENT_BYTES_MAX: usize = 1 << 20;

const OPTION_HEADER_BYTES: usize = 16;

/// How a server treats TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// It has none (NOTLS).
    None,
    /// Who wants it has it (SELECTIVETLS, with no export that needs it).
    Offered,
    /// Nothing is said without it (FORCEDTLS).
    Required,
}

/// What is to be done after the output of a call was sent.
#[derive(Debug)]
#[must_use = "a connection goes on with it, or ends"]
pub enum NegotiationStep {
    /// Bring what the client sends next.
    More,
    /// Do a TLS handshake as its server; then [`Negotiation::encrypted`], and bring what the client sends through it.
    StartTls,
    /// The client has had enough. The connection is to be closed.
    Aborted,
    /// The connection is to be closed.
    Failed(NegotiationFault),
    /// The client has chosen an export.
    Transmission {
        /// What was agreed on.
        settings: TransmissionSettings,
        /// What the client has sent behind it: the beginning of its first requests.
        received: Vec<u8>,
    },
}

/// What a call leads to.
#[derive(Debug)]
#[must_use = "the output is to be sent before the step is done"]
pub struct NegotiationProgress {
    /// To be sent to the client first, whatever the step is.
    pub output: Vec<u8>,
    /// To be done then.
    pub step: NegotiationStep,
}

/// The server's side of the handshake of one connection.
#[derive(Debug)]
pub struct Negotiation {
    tls: TlsPolicy,
    is_encrypted: bool,
    phase: Phase,
    no_zeroes: bool,
    style: HeaderStyle,
    /// For which export they were chosen.
    contexts: Option<(ProtocolString, MetaContexts)>,
    input: Vec<u8>,
    options: u32,
    received: u64,
}

/// What is expected next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    /// Others follow only if the client knows fixed newstyle.
    Option {
        is_fixed: bool,
    },
    /// Data of an option that is too long; then the reply to it.
    Skip {
        option: u32,
        left: u64,
    },
    Tls,
    Over,
}

/// What an option has led to.
enum Step {
    Continue,
    End(NegotiationStep),
}

impl Negotiation {
    /// A negotiation with a client that has just come.
    pub fn new(tls: TlsPolicy) -> Self {
        Self {
            tls,
            is_encrypted: false,
            phase: Phase::ClientFlags,
            no_zeroes: false,
            style: HeaderStyle::Simple,
            contexts: None,
            input: Vec::new(),
            options: 0,
            received: 0,
        }
    }

    /// What is sent first.
    pub fn greeting(&self) -> Vec<u8> {
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let mut bytes = INIT_MAGIC.to_be_bytes().to_vec();
        bytes.extend(OPTION_MAGIC.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes
    }

    /// The client has sent this. After a step that is not [`NegotiationStep::More`] nothing more may be brought, but for
    /// what [`Negotiation::encrypted`] allows.
    pub fn receive(&mut self, bytes: &[u8], exports: &dyn ExportCatalog) -> NegotiationProgress {
        self.received += bytes.len() as u64;
        self.input.extend_from_slice(bytes);
        let mut replies = Replies::default();
        let step = loop {
            match self.next(&mut replies, exports) {
                Ok(Some(Step::Continue)) => {}
                Ok(Some(Step::End(step))) => break step,
                Ok(None) if self.received > RECEIVED_BYTES_MAX => {
                    break NegotiationStep::Failed(NegotiationFault::Bytes);
                }
                Ok(None) => break NegotiationStep::More,
                Err(fault) => break NegotiationStep::Failed(fault),
            }
        };
        match step {
            NegotiationStep::More | NegotiationStep::StartTls => {}
            NegotiationStep::Aborted
            | NegotiationStep::Failed(_)
            | NegotiationStep::Transmission { .. } => self.phase = Phase::Over,
        }
        NegotiationProgress { output: replies.into_bytes(), step }
    }

    /// The TLS handshake that was asked for has succeeded: all that comes from now on comes through it. What the client
    /// had agreed on before is forgotten.
    pub fn encrypted(&mut self) {
        assert_eq!(self.phase, Phase::Tls, "nobody has asked for TLS");
        self.is_encrypted = true;
        self.phase = Phase::Option { is_fixed: true };
        self.style = HeaderStyle::Simple;
        self.contexts = None;
    }

    /// Whether the client has to begin TLS before it is told anything.
    fn needs_tls(&self) -> bool {
        self.tls == TlsPolicy::Required && !self.is_encrypted
    }

    /// Does what the first bytes of the input ask for, if it is there as a whole.
    fn next(
        &mut self,
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<Option<Step>, NegotiationFault> {
        match self.phase {
            Phase::ClientFlags => self.client_flags(),
            Phase::Option { is_fixed } => self.next_option(is_fixed, replies, exports),
            Phase::Skip { option, left } => Ok(self.skip(option, left, replies)),
            Phase::Tls | Phase::Over => {
                if self.input.is_empty() {
                    Ok(None)
                } else {
                    Err(NegotiationFault::Early)
                }
            }
        }
    }

    fn client_flags(&mut self) -> Result<Option<Step>, NegotiationFault> {
        let Some(flags) = Fields(&self.input).u32() else { return Ok(None) };
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return Err(NegotiationFault::ClientFlags(flags));
        }
        let has = |flag: u16| flags & u32::from(flag) != 0;
        self.no_zeroes = has(handshake::NO_ZEROES);
        self.phase = Phase::Option { is_fixed: has(handshake::FIXED_NEWSTYLE) };
        self.input.drain(..4);
        Ok(Some(Step::Continue))
    }

    fn next_option(
        &mut self,
        is_fixed: bool,
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<Option<Step>, NegotiationFault> {
        let mut fields = Fields(&self.input);
        let (Some(magic), Some(option), Some(bytes)) = (fields.u64(), fields.u32(), fields.u32())
        else {
            return Ok(None);
        };
        if magic != OPTION_MAGIC {
            return Err(NegotiationFault::OptionMagic(magic));
        }
        if !is_fixed && option != option::EXPORT_NAME {
            return Err(NegotiationFault::NotFixed(option));
        }
        let count = usize::try_from(bytes).expect("64-bit host");
        if count > OPTION_BYTES_MAX {
            return self.begin_skip(option, bytes).map(Some);
        }
        let Some(data) = fields.bytes(count) else { return Ok(None) };
        let data = data.to_vec();
        self.count_option(replies)?;
        self.input.drain(..OPTION_HEADER_BYTES + count);
        self.answer(option, &data, replies, exports).map(Some)
    }

    fn count_option(&mut self, replies: &Replies) -> Result<(), NegotiationFault> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(NegotiationFault::Options);
        }
        // Only who waits for no reply gets here with many of them.
        if replies.bytes() > SENT_BYTES_MAX {
            return Err(NegotiationFault::Unread);
        }
        Ok(())
    }

    fn begin_skip(&mut self, option: u32, bytes: u32) -> Result<Step, NegotiationFault> {
        // That one has no reply, and what is longer than all that may be sent is not waited for.
        if option == option::EXPORT_NAME || u64::from(bytes) > RECEIVED_BYTES_MAX {
            return Err(NegotiationFault::OptionBytes { option, bytes });
        }
        self.input.drain(..OPTION_HEADER_BYTES);
        self.phase = Phase::Skip { option, left: bytes.into() };
        Ok(Step::Continue)
    }

    fn skip(&mut self, option: u32, left: u64, replies: &mut Replies) -> Option<Step> {
        let found = self.input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.input.drain(..found);
        let left = left - found as u64;
        if left > 0 {
            self.phase = Phase::Skip { option, left };
            return None;
        }
        self.phase = Phase::Option { is_fixed: true };
        let (kind, text) = if self.needs_tls() && option != option::ABORT {
            (reply::ERR_TLS_REQD, TLS_FIRST)
        } else {
            (reply::ERR_TOO_BIG, "the option has too many data")
        };
        replies.error(option, kind, text);
        Some(Step::Continue)
    }

    /// Carries an option out and replies to it.
    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<Step, NegotiationFault> {
        if self.needs_tls() {
            return self.answer_before_tls(option, data, replies);
        }
        let done = match option {
            option::EXPORT_NAME => return self.export_name(data, replies, exports).map(Step::End),
            option::ABORT => return Ok(abort(replies)),
            option::STARTTLS => return self.start_tls(data, replies),
            option::LIST => no_data(data).and_then(|()| list(replies, exports)),
            option::INFO | option::GO => match self.describe(option, data, replies, exports) {
                Ok(Some(settings)) => return Ok(Step::End(self.begin(settings))),
                Ok(None) => Ok(()),
                Err(refusal) => Err(refusal),
            },
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.use_headers(option, data),
            option::LIST_META_CONTEXT => self.list_contexts(data, replies, exports),
            option::SET_META_CONTEXT => self.set_contexts(data, replies, exports),
            _ => Err(OptionRefusal(reply::ERR_UNSUP, "the option is not known")),
        };
        match done {
            Ok(()) => replies.acknowledge(option),
            Err(OptionRefusal(kind, text)) => replies.error(option, kind, text),
        }
        Ok(Step::Continue)
    }

    fn answer_before_tls(
        &mut self,
        option: u32,
        data: &[u8],
        replies: &mut Replies,
    ) -> Result<Step, NegotiationFault> {
        match option {
            option::STARTTLS => self.start_tls(data, replies),
            option::ABORT => Ok(abort(replies)),
            // It has no reply.
            option::EXPORT_NAME => Err(NegotiationFault::PlainClient),
            _ => {
                replies.error(option, reply::ERR_TLS_REQD, TLS_FIRST);
                Ok(Step::Continue)
            }
        }
    }

    fn start_tls(&mut self, data: &[u8], replies: &mut Replies) -> Result<Step, NegotiationFault> {
        let refusal = if !data.is_empty() {
            OptionRefusal(reply::ERR_INVALID, "the option has no data")
        } else if self.is_encrypted {
            OptionRefusal(reply::ERR_INVALID, "TLS has begun")
        } else if self.tls == TlsPolicy::None {
            OptionRefusal(reply::ERR_POLICY, "TLS is not configured")
        } else if !self.input.is_empty() {
            // What was sent in the clear must not count as sent through TLS.
            return Err(NegotiationFault::Early);
        } else {
            replies.acknowledge(option::STARTTLS);
            self.phase = Phase::Tls;
            return Ok(Step::End(NegotiationStep::StartTls));
        };
        replies.error(option::STARTTLS, refusal.0, refusal.1);
        Ok(Step::Continue)
    }

    fn use_headers(&mut self, option: u32, data: &[u8]) -> Result<(), OptionRefusal> {
        no_data(data)?;
        let wanted = if option == option::EXTENDED_HEADERS {
            HeaderStyle::Extended
        } else {
            HeaderStyle::Structured
        };
        if self.style == wanted {
            return Err(OptionRefusal(reply::ERR_INVALID, "that was agreed on already"));
        }
        if self.style > wanted {
            let text = "extended headers were agreed on";
            return Err(OptionRefusal(reply::ERR_EXT_HEADER_REQD, text));
        }
        self.style = wanted;
        Ok(())
    }

    fn export_name(
        &mut self,
        data: &[u8],
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<NegotiationStep, NegotiationFault> {
        if self.style == HeaderStyle::Extended {
            return Err(NegotiationFault::ExportNameAfterExtended);
        }
        let name = options::name(data).ok_or(NegotiationFault::ExportName)?;
        let Some(offer) = exports.find(name) else {
            return Err(NegotiationFault::UnknownExport(name.to_owned()));
        };
        if !offer.block_sizes.is_default() {
            return Err(NegotiationFault::BlockSizes(offer.block_sizes.minimum()));
        }
        let settings = self.settings(&offer);
        replies.raw(&settings.size.0.0.to_be_bytes());
        replies.raw(&settings.flags.bits().to_be_bytes());
        if !self.no_zeroes {
            replies.raw(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(self.begin(settings))
    }

    fn begin(&mut self, settings: TransmissionSettings) -> NegotiationStep {
        NegotiationStep::Transmission { settings, received: std::mem::take(&mut self.input) }
    }

    /// What a client that uses the export now has agreed on.
    fn settings(&self, offer: &ExportOffer) -> TransmissionSettings {
        let chosen = self.contexts.as_ref().filter(|(export, _)| *export == offer.name);
        let contexts = chosen.map_or_else(MetaContexts::default, |(_, contexts)| *contexts);
        // The export may have changed since.
        let contexts = contexts.and(options::available(offer));
        TransmissionSettings::of(offer, self.style, contexts)
    }

    /// Tells of an export; with what to use it, if that is asked for.
    fn describe(
        &mut self,
        option: u32,
        data: &[u8],
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<Option<TransmissionSettings>, OptionRefusal> {
        let query = ExportQuery::parse(data)?;
        let offer = find(exports, query.name)?;
        let settings = self.settings(&offer);
        let sizes = offer.block_sizes;
        replies.block_sizes(option, sizes);
        if !sizes.is_default() && !query.wants(info::BLOCK_SIZE) {
            let text = "its block sizes have to be asked for";
            return Err(OptionRefusal(reply::ERR_BLOCK_SIZE_REQD, text));
        }
        if query.wants(info::NAME) {
            replies.info(option, info::NAME, offer.name.as_str().as_bytes());
        }
        if let Some(description) =
            offer.description.as_ref().filter(|_| query.wants(info::DESCRIPTION))
        {
            replies.info(option, info::DESCRIPTION, description.as_str().as_bytes());
        }
        replies.export(option, &settings);
        if option == option::INFO {
            return Ok(None);
        }
        replies.acknowledge(option);
        Ok(Some(settings))
    }

    fn list_contexts(
        &mut self,
        data: &[u8],
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<(), OptionRefusal> {
        let (query, offer) = self.meta_query(data, exports)?;
        for context in query.listed(&offer).iter() {
            // The number is reserved here.
            replies.context(option::LIST_META_CONTEXT, 0, &context.name(&offer));
        }
        Ok(())
    }

    fn set_contexts(
        &mut self,
        data: &[u8],
        replies: &mut Replies,
        exports: &dyn ExportCatalog,
    ) -> Result<(), OptionRefusal> {
        // Also if it fails.
        self.contexts = None;
        let (query, offer) = self.meta_query(data, exports)?;
        let chosen = query.chosen(&offer);
        for context in chosen.iter() {
            replies.context(option::SET_META_CONTEXT, context.id(), &context.name(&offer));
        }
        self.contexts = Some((offer.name, chosen));
        Ok(())
    }

    fn meta_query<'a>(
        &self,
        data: &'a [u8],
        exports: &dyn ExportCatalog,
    ) -> Result<(MetaQuery<'a>, ExportOffer), OptionRefusal> {
        if self.style == HeaderStyle::Simple {
            return Err(OptionRefusal(reply::ERR_INVALID, "structured replies come first"));
        }
        let query = MetaQuery::parse(data)?;
        let offer = find(exports, query.export)?;
        Ok((query, offer))
    }
}

const TLS_FIRST: &str = "TLS has to be begun first";

fn find(exports: &dyn ExportCatalog, name: &str) -> Result<ExportOffer, OptionRefusal> {
    exports.find(name).ok_or(OptionRefusal(reply::ERR_UNKNOWN, "there is no such export"))
}

fn list(replies: &mut Replies, exports: &dyn ExportCatalog) -> Result<(), OptionRefusal> {
    for export in exports.list() {
        if replies.bytes() > SENT_BYTES_MAX {
            return Err(OptionRefusal(reply::ERR_TOO_BIG, "there are more exports"));
        }
        replies.server(&export);
    }
    Ok(())
}

fn no_data(data: &[u8]) -> Result<(), OptionRefusal> {
    if data.is_empty() {
        return Ok(());
    }
    Err(OptionRefusal(reply::ERR_INVALID, "the option has no data"))
}

fn abort(replies: &mut Replies) -> Step {
    replies.acknowledge(option::ABORT);
    Step::End(NegotiationStep::Aborted)
}
