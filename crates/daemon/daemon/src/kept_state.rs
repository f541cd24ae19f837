//! What a start serves with: the line, or what commands have made since, as a state file or the process before has it.
//!
//! Invariants: what is kept was written by a daemon that serves guests, and may be what a guest wants: only what the line
//! names is opened, and what commands may open by it (`--allow-below`), unless it has no fences anyway. The file is opened before anything is made, and locked before anybody is served; the process that is taken
//! over has it locked until it has ended.

use std::path::{Path, PathBuf};

use block::Access;
use control::{Configuration, KeptJob, StateFile, StateFileError};
use graph::{Blockdev, ServerAddress};
use nbd_server::{ListenAddress, NbdServerOptions};
use options::{OldState, Plan, PlanStep, TakeoverMode, restored};
use sandbox::{AllowedDirectory, SandboxMode};
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
            let sockets = plan
                .exports()
                .filter_map(|export| Some(absolute(&export.vhost_user_blk()?.socket.path)));
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
            // By the process that is to be taken over, which may not have been able to say what it serves with.
            Err(StateFileError::InUse(_)) if plan.takeover == TakeoverMode::WhereServed => {
                if let Some(kept) = StateFile::peek(&path)? {
                    state.use_instead(plan, &kept, &format!("state file {}", path.display()))?;
                }
            }
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
        for KeptJob { id, what } in &kept.jobs {
            tracing::warn!(
                "{place}: block job '{id}' ended with the daemon, and its result does not count; begin it anew: it {what}"
            );
        }
        let wanted = plan.configuration();
        for difference in wanted.differences(kept, &plan.source(), "the state") {
            self.is_changed = true;
            tracing::warn!("{place}: {difference}; the state counts (see --state-reset)");
        }
        let steps = restored(kept, &plan.socket_rights);
        let failed = |source| ServeError::State { place: place.to_owned(), source };
        let (steps, server) = steps.map_err(failed)?;
        if let Some(address) = server_not_allowed(plan, &steps) {
            return Err(ServeError::MayNotConnect { place: place.to_owned(), address });
        }
        if let Some(path) = not_allowed(plan, &steps) {
            return Err(ServeError::NotAllowed { place: place.to_owned(), path });
        }
        // What would show a secret is not kept: such objects are those of the line.
        let is_new = |step: &PlanStep| match step {
            PlanStep::Object(object) => {
                let is_it =
                    |it: &PlanStep| matches!(it, PlanStep::Object(it) if it.id == object.id);
                object.kept().is_none() && !steps.iter().any(is_it)
            }
            PlanStep::Blockdev(_) | PlanStep::Export(_) => false,
        };
        let mut of_line: Vec<PlanStep> =
            plan.steps.iter().filter(|it| is_new(it)).cloned().collect();
        of_line.extend(steps);
        plan.steps = of_line;
        if let Some(server) = server.as_ref().filter(|server| !may_listen(plan, server)) {
            let (place, address) = (place.to_owned(), server.address.clone());
            return Err(ServeError::MayNotListen { place, address });
        }
        plan.nbd_server = server;
        Ok(())
    }

    /// The file, locked: also where a process that was taken over had it until now.
    pub(crate) fn lock(&mut self, plan: &Plan) -> Result<Option<StateFile>, ServeError> {
        match (self.file.take(), &plan.state) {
            (Some(file), _) => Ok(Some(file)),
            (None, Some(path)) => {
                let (file, kept) = StateFile::open(path)?;
                // The process that had it may have changed something since it was asked.
                let differs = |kept: &Configuration| {
                    !plan
                        .configuration()
                        .differences(kept, "what is served", "the state")
                        .is_empty()
                };
                if kept.as_ref().is_some_and(differs) {
                    return Err(ServeError::StateChanged(path.clone()));
                }
                Ok(Some(file))
            }
            (None, None) => Ok(None),
        }
    }
}

/// Whether the line lets an NBD server listen there.
fn may_listen(plan: &Plan, server: &NbdServerOptions) -> bool {
    let is_named = plan.nbd_server.as_ref().is_some_and(|it| it.address == server.address);
    let is_granted = match &server.address {
        ListenAddress::Inet(inet) => plan.allow_listen.iter().any(|grant| grant.allows(inet)),
        ListenAddress::Unix(socket) => {
            let path = real(&socket.path);
            let is_below = |it: &AllowedDirectory| {
                it.access == Access::ReadWrite && path.starts_with(&it.path)
            };
            plan.allowed.iter().any(is_below)
        }
        ListenAddress::Descriptor(_) => false,
    };
    plan.sandbox == SandboxMode::Off || is_named || is_granted
}

/// A server of these steps that neither a node of the line connects to, nor `--allow-connect` allows.
fn server_not_allowed(plan: &Plan, steps: &[PlanStep]) -> Option<ServerAddress> {
    let rights = plan.connect_rights();
    let is_refused = |it: &&ServerAddress| plan.sandbox != SandboxMode::Off && !rights.allow(it);
    let nodes = steps.iter().filter_map(|step| match step {
        PlanStep::Blockdev(blockdev) => Some(blockdev.nodes()),
        PlanStep::Object(_) | PlanStep::Export(_) => None,
    });
    nodes.flatten().filter_map(Blockdev::server).find(is_refused).cloned()
}

/// A path of these steps that neither the line names, nor a directory of `--allow-below` has, for what is done with it.
fn not_allowed(plan: &Plan, steps: &[PlanStep]) -> Option<PathBuf> {
    if plan.sandbox == SandboxMode::Off {
        return None;
    }
    let named: Vec<(PathBuf, Access)> = plan.steps.iter().flat_map(paths_of).collect();
    let suffices = |has: Access, wants: Access| has == wants || has == Access::ReadWrite;
    let is_allowed = |(path, wants): &(PathBuf, Access)| {
        let below = |allowed: &AllowedDirectory| {
            path.starts_with(&allowed.path) && suffices(allowed.access, *wants)
        };
        named.iter().any(|(name, has)| name == path && suffices(*has, *wants))
            || plan.allowed.iter().any(below)
    };
    let all = steps.iter().flat_map(paths_of);
    all.filter(|it| !is_allowed(it)).map(|(path, _)| path).next()
}

/// What a step opens or makes, and whether to write.
fn paths_of(step: &PlanStep) -> Vec<(PathBuf, Access)> {
    match step {
        PlanStep::Object(object) => {
            let files = object.files().into_iter();
            files.map(|path| (real(path), Access::ReadOnly)).collect()
        }
        PlanStep::Blockdev(blockdev) => {
            let of_node = |node: &Blockdev| {
                let files: Vec<_> = node.files().into_iter().map(real).collect();
                files.into_iter().map(|path| (path, node.base.access())).collect::<Vec<_>>()
            };
            blockdev.nodes().into_iter().flat_map(of_node).collect()
        }
        PlanStep::Export(export) => {
            let own = export.vhost_user_blk().into_iter();
            let own = own.filter(|own| own.socket.descriptor.is_none());
            own.map(|own| (real(&own.socket.path), Access::ReadWrite)).collect()
        }
    }
}

/// Where a path leads, without links; what is not there yet is in its directory.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        (_, _) => path,
    }
}
