//! The driver `throttle`: another node's bytes, within the limits of a group.

use std::sync::Arc;

use block::Child;
use layers::{Limit, LimitKind, ThrottleNode};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use super::raw;
use crate::model::{ChildRole, THROTTLE_GROUP, TypedObjectId};

/// `driver=throttle`.
pub(super) static THROTTLE: Driver = Driver {
    name: "throttle",
    keys: Keys {
        of: "--blockdev driver=throttle",
        supported: &[
            BASE,
            &[required("throttle-group", ValueType::Text), required("file", ValueType::Node)],
        ],
        later: &[BASE_LATER],
    },
    changeable: &["read-only", "discard", "cache", "throttle-group", "limits"],
    roles: &[("file", ChildRole::Filtered)],
    help: "  --blockdev [driver=]throttle,node-name=N,throttle-group=ID,file=NODE
                         another node's bytes, within the limits of a group
",
    as_format: None,
    read,
};

/// The options of `driver=throttle`.
#[derive(Debug)]
struct ThrottleOptions {
    group: String,
}

/// A throttle group that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no throttle-group '{0}'")]
struct UnknownThrottleGroup(String);

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    Ok(Arc::new(ThrottleOptions { group: fields.required_text("throttle-group")? }))
}

impl DriverOptions for ThrottleOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        let objects = vec![TypedObjectId { kind: THROTTLE_GROUP, id: &self.group }];
        NodeRequirements { objects, ..NodeRequirements::default() }
    }

    fn describe(&self, groups: &ThrottleGroups) -> Vec<(String, String)> {
        let mut options = vec![pair("throttle-group", &self.group)];
        let Some(group) = groups.get(&self.group) else { return options };
        let limits = group.limits();
        let settings = limits.settings();
        for kind in LimitKind::ALL {
            let Limit { rate, burst, burst_seconds } = *settings.limit(kind);
            let key = |suffix: &str| format!("limits.{}{suffix}", kind.name());
            options.push((key(""), rate.to_string()));
            options.push((key("-max"), burst.to_string()));
            options.push((key("-max-length"), burst_seconds.to_string()));
        }
        options.push(pair("limits.iops-size", &settings.iops_size));
        options
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let Some(group) = context.groups.get(&self.group) else {
            return Err(context.failed(UnknownThrottleGroup(self.group.clone())));
        };
        let (group, access) = (Arc::clone(group), context.base.access());
        let node = ThrottleNode::new(context.name, context.file(), group, access);
        // As in QEMU, discards that do nothing cost nothing: they end above the throttle.
        Ok(MadeNode::of(raw::discarding(context, Child::new(Arc::new(node))).node()))
    }
}
