//! The container images of `contrib`: built of their recipes by buildah without a registry, compared, and tried.
//!
//! Where it stands: `cargo xtask dist --images` builds all of them twice and tries them; `test_cluster` runs those of pods and
//! guests.
//!
//! Invariants: an image is what its recipe makes of Debian's packages and of a program; nothing else is fetched. Limits: root,
//! and the programs of [`NEEDED`].
//! Not here: what is in an image (`contrib/Containerfile*`), and how the program in it is built ([`static_program`] but for that).

#![forbid(unsafe_code)]

mod archive;
mod clock;
mod program;
mod recipe;
mod run;
mod store;
mod trial;

pub use archive::Archive;
pub use program::{cargo, static_program};
pub use recipe::{AGENT_NAME, GUEST_NAME, Recipe, agent, guest, serve};
pub use run::{NEEDED, check_programs, output_of};
pub use store::Store;
pub use trial::{try_agent, try_guest, try_serve};
