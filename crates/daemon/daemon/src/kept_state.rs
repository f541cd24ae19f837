//! What a start serves with: the line, or what commands have made since, as a state file or the process before has it.
//!
//! Invariants: the file is opened before anything is made, and locked before anybody is served; the process that is taken
//! over has it locked until it has ended.

use std::path::Path;

use control::{Configuration, StateFile, StateFileError};
use options::{OldState, Plan, TakeoverMode, restored};
use takeover::configuration_of;

use crate::serve::ServeError;

/// The state file of a start, and whether what is in it counts.
pub(crate) struct State {
    file: Option<StateFile>,
    /// Whether it is served with what commands have made.
    pub(crate) is_changed: bool,
}

impl State {
    /// Finds out what to serve with, and puts it in the place of what the line makes.
    pub(crate) fn open(plan: &mut Plan) -> Result<Self, ServeError> {
        let mut state = Self { file: None, is_changed: false };
        if plan.takeover == TakeoverMode::WhereServed {
            let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
            let sockets = plan.exports().map(|export| absolute(&export.socket.path));
            let sockets: Vec<_> = sockets.collect();
            let sockets: Vec<&Path> = sockets.iter().map(|path| &**path).collect();
            if let Some(theirs) = configuration_of(&sockets)? {
                let place = "the process that is taken over";
                if let Some(difference) = plan.configuration().contradiction(&theirs) {
                    let place = place.to_owned();
                    return Err(ServeError::Contradiction { place, difference });
                }
                state.use_instead(plan, &theirs, place)?;
                return Ok(state);
            }
        }
        let Some(path) = plan.state.clone() else { return Ok(state) };
        if plan.old_state == OldState::Forgotten {
            state.file = Some(StateFile::reset(&path)?);
            return Ok(state);
        }
        match StateFile::open(&path) {
            // By the process that is to be taken over, which has said that the line is right.
            Err(StateFileError::InUse(_)) if plan.takeover == TakeoverMode::WhereServed => {}
            Err(error) => return Err(error.into()),
            Ok((file, kept)) => {
                state.file = Some(file);
                if let Some(kept) = kept {
                    state.use_instead(plan, &kept, &format!("state file {}", path.display()))?;
                }
            }
        }
        Ok(state)
    }

    fn use_instead(
        &mut self,
        plan: &mut Plan,
        kept: &Configuration,
        place: &str,
    ) -> Result<(), ServeError> {
        let wanted = plan.configuration();
        for difference in wanted.differences(kept, "the command line", "the state") {
            self.is_changed = true;
            tracing::warn!("{place}: {difference}; the state counts (see --state-reset)");
        }
        let steps = restored(kept, &plan.socket_rights);
        let failed = |source| ServeError::State { place: place.to_owned(), source };
        plan.steps = steps.map_err(failed)?;
        Ok(())
    }

    /// The file, locked: also where a process that was taken over had it until now.
    pub(crate) fn lock(&mut self, plan: &Plan) -> Result<Option<StateFile>, ServeError> {
        match (self.file.take(), &plan.state) {
            (Some(file), _) => Ok(Some(file)),
            (None, Some(path)) => Ok(Some(StateFile::open(path)?.0)),
            (None, None) => Ok(None),
        }
    }
}
