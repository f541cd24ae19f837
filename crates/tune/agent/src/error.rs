//! What can go wrong between an agent and its client.

use std::io;

use crate::token::TokenError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The other end is gone.
    #[error("the connection to the agent is lost{}", said(.0))]
    Lost(String),
    /// The stream cannot be read or written.
    #[error("the agent's stream")]
    Stream(#[source] io::Error),
    /// What the agent says of what was asked.
    #[error("agent: {0}")]
    Refused(String),
    /// It does not answer.
    #[error("the agent has not answered for {0} s")]
    Silent(u64),
    /// A line that is none of this protocol's.
    #[error("the agent's stream has a line that is not understood: {0}")]
    Line(String),
    /// Who waited does not want to any more.
    #[error("the wait for the agent was ended")]
    Ended(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address cannot be listened at or reached.
    #[error("agent at {address}")]
    Address {
        /// As it was given.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The token of an agent.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// fio prints more than is kept.
    #[error("fio has printed more than {0} bytes")]
    Output(usize),
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}
