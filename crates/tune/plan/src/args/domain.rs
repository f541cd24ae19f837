//! The options of `ringloom tune` that name a domain of libvirt as the baseline.

use clap::Args;

use crate::contender::Iothreads;

/// Options of the baseline.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Baseline")]
pub struct DomainArgs {
    /// A domain of libvirt by its name, or its XML as a file (with a / in it, or .xml at its end): what it says is measured, and
    /// the answer is a copy of it. A domain that runs is not touched
    #[arg(long, value_name = "NAME|FILE.xml")]
    pub domain: Option<String>,

    /// Which disk of --domain, such as vda [default: the only one]
    #[arg(long, value_name = "TARGET", requires = "domain")]
    pub disk: Option<String>,

    /// How many iothreads the disk of the domain has.
    #[arg(skip)]
    pub today: Option<Iothreads>,
}
