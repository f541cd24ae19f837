//! Why a run has failed, as far as the cluster knows it, and whether anything can go on.

use ::cluster::{ClusterError, Session};
use agent::AgentError;
use storage::interrupt::Interrupt;

/// An error with what the cluster knows of it, if an agent is gone.
pub(super) fn explained(
    session: &mut Session,
    error: anyhow::Error,
    interrupt: &Interrupt,
) -> anyhow::Error {
    let is_lost = error.chain().any(|cause| cause.is::<AgentError>());
    let why = is_lost.then(|| session.trouble(&mut || Ok(interrupt.check()?))).flatten();
    match why {
        // Of these an error is to be found in its chain, where a context is not.
        Some(why @ (ClusterError::Ended(_) | ClusterError::Lost { .. })) => why.into(),
        Some(why) => error.context(why),
        None if is_cut(&error) => error.context(
            "all pods run on, so the connection to one, by way of the API server, has broken",
        ),
        None => error,
    }
}

/// Whether a stream has ended, and not something that went through it.
fn is_cut(error: &anyhow::Error) -> bool {
    let is_it = |it: &(dyn std::error::Error + 'static)| {
        matches!(it.downcast_ref(), Some(AgentError::Lost(_) | AgentError::Stream(_)))
    };
    error.chain().any(is_it)
}

/// Whether nobody answers any more, so that nothing can be measured.
pub(super) fn is_gone(error: &anyhow::Error) -> bool {
    let is_it = |it: &(dyn std::error::Error + 'static)| {
        matches!(it.downcast_ref(), Some(ClusterError::Lost { .. }))
    };
    error.chain().any(is_it)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_ends_all_is_told_from_what_ends_one_run() {
        let of = |error: AgentError| anyhow::Error::new(error).context("fio in a pod");
        assert!(is_cut(&of(AgentError::Lost(String::new()))));
        assert!(is_cut(&of(AgentError::Stream(std::io::Error::other("broken")))));
        assert!(!is_cut(&of(AgentError::Refused("no fio".to_owned()))));
        let refused = ClusterError::Lacks("no KubeVirt".to_owned());
        let error = Err::<(), _>(refused).context("a run").expect_err("an error");
        assert!(!is_gone(&error), "{error:#}");
    }
}
