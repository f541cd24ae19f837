//! The fence around files, TCP and abstract sockets: landlock.
//!
//! Invariants: what a kernel does not know yet is left out; the first version of landlock, which
//! fences opening, is enough to count as a fence.
//! Threads: landlock holds for a thread and those that it starts later.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};

use super::file_grants::{DirectoryGrantPurpose, FileGrant};

/// The newest version of landlock that is asked for.
const NEWEST: ABI = ABI::V9;

/// The landlock rules, ready to be enforced on any number of threads.
#[derive(Debug)]
pub(super) struct LandlockRules {
    ruleset: RulesetCreated,
}

/// To which ports of TCP the process may connect.
#[derive(Debug, Clone, Copy)]
pub(super) enum ConnectedPorts<'a> {
    /// These.
    These(&'a [u16]),
    /// Any: landlock knows no ranges, and a cluster has servers on ports that only it knows.
    All,
}

/// Landlock is missing, off, or refuses the rules.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// Its kernel was built without.
    #[error("this kernel has no landlock, or it is forbidden here")]
    NotThere,
    /// Its kernel was started without.
    #[error("landlock is switched off on this host (boot parameter lsm=)")]
    Off,
    /// The kernel refused the rules.
    #[error("landlock takes no rules")]
    Rules(#[from] RulesetError),
    /// The rules could not be shared with another thread.
    #[error("landlock's rules cannot be used")]
    Share(#[source] std::io::Error),
}

impl LandlockRules {
    /// Makes the rules; nothing is fenced yet.
    pub(super) fn new(
        grants: &[FileGrant],
        listens: &[u16],
        connects: ConnectedPorts<'_>,
    ) -> Result<Self, LandlockError> {
        let (network, connects) = match connects {
            ConnectedPorts::These(ports) => (AccessNet::from_all(NEWEST), ports),
            ConnectedPorts::All => (AccessNet::from_all(NEWEST) & !AccessNet::ConnectTcp, &[][..]),
        };
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(network)?
            // Not signals: a process that takes over is outside, and can be ended if it hangs. The
            // filter of system calls lets that one signal through and no other.
            .scope(Scope::AbstractUnixSocket)?
            .create()?;
        for grant in grants {
            // In what is not there nothing can be made, and whoever needs it says so.
            if let Ok(place) = PathFd::new(&grant.path) {
                ruleset = ruleset.add_rule(PathBeneath::new(place, rights(grant.for_what)))?;
            }
        }
        for port in listens {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        for port in connects {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        Ok(Self { ruleset })
    }

    /// Puts the fence up for the calling thread and those that it will start. Returns landlock's
    /// version.
    pub(super) fn put_up(&self) -> Result<i32, LandlockError> {
        let ruleset = self.ruleset.try_clone().map_err(LandlockError::Share)?;
        let RestrictionStatus { ruleset, landlock, .. } = ruleset.restrict_self()?;
        match (ruleset, landlock) {
            (
                RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
                LandlockStatus::Available { effective_abi, kernel_abi },
            ) => Ok(kernel_abi.unwrap_or(effective_abi as i32)),
            (_, LandlockStatus::NotEnabled) => Err(LandlockError::Off),
            (_, LandlockStatus::NotImplemented | LandlockStatus::Available { .. }) => {
                Err(LandlockError::NotThere)
            }
        }
    }
}

fn rights(for_what: DirectoryGrantPurpose) -> BitFlags<AccessFs> {
    match for_what {
        DirectoryGrantPurpose::Removal => AccessFs::RemoveFile.into(),
        DirectoryGrantPurpose::Connecting => AccessFs::ResolveUnix.into(),
        DirectoryGrantPurpose::Logs => AccessFs::MakeReg | AccessFs::WriteFile,
        DirectoryGrantPurpose::Reading => AccessFs::ReadFile | AccessFs::ReadDir,
        DirectoryGrantPurpose::Writing => {
            AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::IoctlDev
                | AccessFs::MakeReg
                | AccessFs::MakeSock
                | AccessFs::RemoveFile
        }
    }
}
