//! A domain of libvirt: what its XML says of a disk, what of that is unwise, and a copy of it with another number of iothreads.
//! Pure functions.
//!
//! The results keep the XML (`Domain`), so the report makes the copy (`Domain::answered`).
//!
//! Not here: where the XML is from, and how it is measured (`baseline`).

pub mod edit;
pub mod judge;
pub mod view;

use anyhow::Result;
use plan::contender::Iothreads;
use serde::{Deserialize, Serialize};

pub use self::edit::Copy;
use self::view::{View, parse};

/// A domain as the results keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name in libvirt.
    pub name: String,
    /// The target of the disk that is measured: `vda`.
    pub disk: String,
    /// As libvirt or the file gave it.
    pub xml: String,
}

/// What the answer means for a domain.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It has that number.
    Same,
    /// A copy that has it.
    Copy(Copy),
    /// Why it stays as it is, a sentence.
    Fixed(String),
}

impl Domain {
    /// What becomes of the domain if its disk shall have so many iothreads. Whatever the XML is: results may be damaged.
    pub fn answered(&self, iothreads: Iothreads) -> Outcome {
        let change = || -> Result<Outcome> {
            let document = parse(&self.xml)?;
            let view = View::new(&document, Some(&self.disk))?;
            if view.holder().is_some() && view.own().len() == usize::from(iothreads.count()) {
                return Ok(Outcome::Same);
            }
            let changed = edit::with_iothreads(&self.xml, &view, iothreads.count());
            Ok(changed.map_or_else(Outcome::Fixed, Outcome::Copy))
        };
        change().unwrap_or_else(|error| {
            Outcome::Fixed(format!("The domain cannot be changed: {error:#}."))
        })
    }

    /// What forbids to go on with results of another domain.
    pub fn difference(new: Option<&Self>, old: Option<&Self>) -> Option<String> {
        let name = |it: Option<&Self>| {
            it.map_or("none".to_owned(), |it| format!("{} ({})", it.name, it.disk))
        };
        match (name(new), name(old)) {
            _ if new == old => None,
            (new, old) if new == old => Some(format!("the XML of the domain {new} is another")),
            (new, old) => Some(format!("--domain is {new}, was {old}")),
        }
    }
}
