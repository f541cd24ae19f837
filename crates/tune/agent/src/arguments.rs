//! The options of `ringloom agent`, and what each of its forms does.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::error::AgentError;
use crate::service::{Service, become_fio, hold, serve};
use crate::tcp::{connect, listen};
use crate::token::Token;

/// Without an address: obey a client at standard input and output until it leaves.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AgentArgs {
    /// Listen at this address, such as 0.0.0.0:7777, and obey one client after the other
    #[arg(long, value_name = "ADDRESS", requires = "token_file")]
    listen: Option<SocketAddr>,
    /// What a client has to know: 16 to 128 letters, digits and signs - and _ in a file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The program fio
    #[arg(long, value_name = "PROGRAM", default_value = "fio")]
    fio: PathBuf,
    #[command(subcommand)]
    form: Option<Form>,
}

#[derive(Debug, Subcommand)]
enum Form {
    /// Join standard input and output to an agent that listens
    Connect {
        /// Where it listens
        address: SocketAddr,
    },
    /// Keep a container alive until SIGTERM
    Hold,
    /// Become fio, for a process that is to end with its parent
    #[command(hide = true)]
    Fio {
        parent: u32,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Does what the options say.
///
/// # Errors
/// Why it cannot, or how its client has ended if not in order.
pub fn run(arguments: &AgentArgs) -> Result<(), AgentError> {
    match &arguments.form {
        Some(Form::Connect { address }) => connect(*address),
        Some(Form::Hold) => hold().map_err(AgentError::Stream),
        Some(Form::Fio { parent, words }) => Err(AgentError::Stream(become_fio(*parent, words))),
        None => {
            let service = service(arguments)?;
            match arguments.listen {
                Some(address) => listen(&service, address, |_| {}),
                None => serve(&service, io::stdin(), io::stdout()),
            }
        }
    }
}

fn service(arguments: &AgentArgs) -> Result<Service, AgentError> {
    let token = arguments.token_file.as_deref().map(Token::read).transpose()?;
    // This program itself, even if its file was replaced since.
    let own = ["/proc/self/exe", "agent", "fio"].map(OsString::from);
    let parent = OsString::from(std::process::id().to_string());
    let through = own.into_iter().chain([parent, OsString::from("--")]).collect();
    Ok(Service { fio: arguments.fio.clone(), through, token })
}
