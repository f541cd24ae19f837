//! The driver `copy-before-write`: another node's bytes, and what is about to be changed of them is copied to a target.

use std::sync::Arc;
use std::time::Duration;

use layers::{CbwErrorPolicy, CopyBeforeWriteNode, CopyBeforeWriteSettings};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::ChildRole;

/// The key of the node that is copied to.
const TARGET: &str = "target";

/// The words of `on-cbw-error`.
const BREAK_GUEST_WRITE: &str = "break-guest-write";
const BREAK_SNAPSHOT: &str = "break-snapshot";

/// `driver=copy-before-write`.
pub(super) static COPY_BEFORE_WRITE: Driver = Driver {
    name: "copy-before-write",
    keys: Keys {
        of: "--blockdev driver=copy-before-write",
        supported: &[
            BASE,
            &[
                required("file", ValueType::Node),
                required(TARGET, ValueType::Node),
                optional("on-cbw-error", ValueType::Word(&[BREAK_GUEST_WRITE, BREAK_SNAPSHOT])),
                optional("cbw-timeout", ValueType::Number),
                optional("min-cluster-size", ValueType::Size),
                optional("bitmap", ValueType::Object(&BITMAP)),
            ],
        ],
        later: &[BASE_LATER],
    },
    changeable: &[],
    roles: &[("file", ChildRole::Preserved), (TARGET, ChildRole::PreservedTo)],
    help: "  --blockdev [driver=]copy-before-write,node-name=N,file=NODE,target=NODE
                   [,on-cbw-error=break-guest-write|break-snapshot][,cbw-timeout=SECONDS]
                   [,min-cluster-size=BYTES][,bitmap.node=NODE,bitmap.name=NAME]
                         another node's bytes; what is about to be changed is copied to target
                         first, where snapshot-access finds it. If that fails, or takes longer
                         than cbw-timeout (0: never), the change fails or the snapshot is lost.
                         With a dirty bitmap only what is marked in it now can be read then
",
    as_format: None,
    read,
};

/// A dirty bitmap.
static BITMAP: Keys = Keys {
    of: "--blockdev driver=copy-before-write bitmap",
    supported: &[&[required("node", ValueType::Text), required("name", ValueType::Text)]],
    later: &[],
};

/// The options of `driver=copy-before-write`.
#[derive(Debug)]
struct CopyBeforeWriteOptions {
    settings: CopyBeforeWriteSettings,
    timeout_s: u32,
    /// The bitmap that says what is preserved: its node and its name.
    bitmap: Option<(String, String)>,
}

/// There is no such node. QEMU's sentence.
#[derive(Debug, thiserror::Error)]
#[error("Node '{0}' not found")]
struct NoBitmapNode(String);

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let on_error = match fields.word("on-cbw-error")? {
        Some(BREAK_SNAPSHOT) => CbwErrorPolicy::BreakSnapshot,
        Some(_) | None => CbwErrorPolicy::BreakGuestWrite,
    };
    let timeout_s = fields.number_u32("cbw-timeout")?.unwrap_or(0);
    let timeout = (timeout_s > 0).then(|| Duration::from_secs(timeout_s.into()));
    let min_cluster_bytes = fields.size("min-cluster-size")?.unwrap_or(0);
    let settings = CopyBeforeWriteSettings { on_error, timeout, min_cluster_bytes };
    let bitmap = fields.object("bitmap")?.map(|mut fields| -> Result<_, ArgumentError> {
        Ok((fields.required_text("node")?, fields.required_text("name")?))
    });
    let bitmap = bitmap.transpose()?;
    Ok(Arc::new(CopyBeforeWriteOptions { settings, timeout_s, bitmap }))
}

impl DriverOptions for CopyBeforeWriteOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        let bitmaps_of = self.bitmap.as_ref().map(|(node, _)| node.as_str());
        NodeRequirements { bitmaps_of, ..NodeRequirements::default() }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        let on_error = match self.settings.on_error {
            CbwErrorPolicy::BreakGuestWrite => BREAK_GUEST_WRITE,
            CbwErrorPolicy::BreakSnapshot => BREAK_SNAPSHOT,
        };
        let bitmap =
            self.bitmap.as_ref().map_or(String::new(), |(node, name)| format!("{node}: {name}"));
        vec![
            pair("on-cbw-error", on_error),
            pair("cbw-timeout", &self.timeout_s),
            pair("min-cluster-size", &self.settings.min_cluster_bytes),
            pair("bitmap", &bitmap),
        ]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let NodeContext { name, base, clock, .. } = context;
        let target = context.child(TARGET).expect("the reader has taken it");
        let (children, policies) = ((context.file(), target), (base.access(), base.discard));
        let clock = Arc::clone(clock);
        let node = CopyBeforeWriteNode::new(name, children, policies, self.settings, clock);
        let node = node.map_err(|error| context.failed(error))?;
        if let Some((of, name)) = &self.bitmap {
            let bitmaps = context.bitmaps.ok_or_else(|| NoBitmapNode(of.clone()))?;
            node.state().keep_only(name, &*bitmaps.bits(name)?)?;
        }
        Ok(MadeNode::of(Arc::new(node)))
    }
}
