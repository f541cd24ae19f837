//! What is wrong with a results file, as sentences: each kind once, with how often and on which lines. Pure.

use std::collections::BTreeMap;

use plan::units::counted;

/// Lines of one kind that are named.
const NAMED_MAX: usize = 5;

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A header without these fields.
    HeaderLacks,
    /// A run or failure of which no header can be read.
    NoHeader,
    /// Of a format that is not read.
    Format(u64),
    /// Neither header, run nor failure.
    Unknown,
    /// No JSON, or not what it says it is.
    Unreadable,
    /// Longer than any line of ours.
    TooLong,
    /// More runs than anybody measures.
    TooMany,
    /// The last line, without its end.
    Torn,
    /// A run of no time: it has no rate.
    NoTime,
    /// A run with figures that cannot be.
    Absurd,
    /// A run of no request.
    NoAnswer,
    /// A run that was there before.
    Again,
}

/// All of one file.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    found: BTreeMap<Kind, Found>,
    no_header: bool,
}

#[derive(Debug, Default)]
struct Found {
    count: usize,
    /// The first of them.
    named: Vec<String>,
}

impl Troubles {
    /// Adds one; `what` says more of it, if there is more to say.
    pub(super) fn add(&mut self, kind: Kind, line: u64, what: &str) {
        let found = self.found.entry(kind).or_default();
        found.count += 1;
        if found.named.len() < NAMED_MAX {
            let what = if what.is_empty() { String::new() } else { format!(" ({what})") };
            found.named.push(format!("line {line}{what}"));
        }
    }

    /// Notes that nothing says what was measured where.
    pub(super) fn no_header(&mut self) {
        self.no_header = true;
        self.found.remove(&Kind::NoHeader);
    }

    /// A sentence for each kind, without its full stop.
    pub(super) fn sentences(&self) -> Vec<String> {
        let header = "there is no header that can be read, so machine, disk, programs and settings \
                      are not known";
        let header = self.no_header.then(|| header.to_owned());
        let found = self.found.iter().map(|(kind, found)| {
            let more = if found.count > found.named.len() { "; …" } else { "" };
            format!("{}: {}{more}", kind.sentence(found.count), found.named.join("; "))
        });
        header.into_iter().chain(found).collect()
    }
}

impl Kind {
    fn sentence(self, count: usize) -> String {
        let lines = counted(count, "line");
        let runs = counted(count, "run");
        let one = count == 1;
        let (is, has, was) = if one { ("is", "has", "was") } else { ("are", "have", "were") };
        match self {
            Self::HeaderLacks => {
                format!("the header lacks {}, shown as unknown", counted(count, "field"))
            }
            Self::NoHeader => format!("{lines} {has} no header that can be read"),
            Self::Format(format) => format!(
                "{lines} {is} of format {format}, which this version of ringloom does not read, \
                 and left out"
            ),
            Self::Unknown => format!("{lines} {is} of an unknown kind and left out"),
            Self::Unreadable => format!("{lines} cannot be read and {is} left out"),
            Self::TooLong => format!("{lines} {is} longer than any result and left out"),
            Self::TooMany => format!("{lines} {is} more than can be reported and left out"),
            Self::Torn => "the last line is cut off and left out".to_owned(),
            Self::NoTime => {
                format!("{runs} {was} of no time, so without a rate, and {is} left out")
            }
            Self::Absurd => format!("{runs} {has} figures that cannot be and {is} left out"),
            Self::NoAnswer => format!("{runs} did not one request, which counts as a rate of 0"),
            Self::Again => {
                format!("{runs} {is} there more than once, of which the last counts")
            }
        }
    }
}
