//! The drivers `null-co` and `null-aio`: a disk without content. QEMU has two ways to answer, a coroutine and a callback;
//! here they are one.

use std::sync::Arc;
use std::time::Duration;

use block::{ByteCount, DiskSize};
use disk::{NullNode, ReadContent};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional};

use super::base::{BASE, BASE_LATER, BaseOptions, CHANGEABLE, on_off, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};

/// QEMU's default size: 1 GiB.
const BYTES: u64 = 1 << 30;

const OWN: &[Key] = &[
    // As long as in QEMU: 292 years.
    optional("latency-ns", ValueType::Int),
    optional("size", ValueType::Int),
    optional("read-zeroes", ValueType::Flag),
];

/// `driver=null-co`.
pub(super) static NULL_CO: Driver = Driver {
    name: "null-co",
    keys: Keys { of: "--blockdev driver=null-co", supported: &[BASE, OWN], later: &[BASE_LATER] },
    changeable: CHANGEABLE,
    roles: &[],
    help:
        "  --blockdev [driver=]null-co,node-name=N[,size=BYTES][,read-zeroes=on|off][,latency-ns=NS]
                         a disk without content; default: 1 GiB, reads give whatever was there.
                         latency-ns: how long every request takes
",
    as_format: None,
    read,
};

/// `driver=null-aio`.
pub(super) static NULL_AIO: Driver = Driver {
    name: "null-aio",
    keys: Keys { of: "--blockdev driver=null-aio", supported: &[BASE, OWN], later: &[BASE_LATER] },
    changeable: CHANGEABLE,
    roles: &[],
    help: "  --blockdev [driver=]null-aio,node-name=N[,…]
                         the same
",
    as_format: None,
    read,
};

/// The options of `driver=null-co` and `driver=null-aio`.
#[derive(Debug)]
struct NullOptions {
    size: u64,
    latency: Duration,
    content: ReadContent,
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let content = fields.either("read-zeroes", ReadContent::Zeroes, ReadContent::Untouched)?;
    Ok(Arc::new(NullOptions {
        size: fields.int("size")?.unwrap_or(BYTES),
        latency: Duration::from_nanos(fields.int("latency-ns")?.unwrap_or(0)),
        content: content.unwrap_or(ReadContent::Untouched),
    }))
}

impl DriverOptions for NullOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        vec![
            pair("size", &self.size),
            pair("read-zeroes", on_off(self.content == ReadContent::Zeroes)),
            pair("latency-ns", &self.latency.as_nanos()),
        ]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let size = DiskSize(ByteCount(self.size));
        let node = NullNode::new(context.name, size, context.base.access(), self.content);
        Ok(MadeNode::of(Arc::new(node.with_latency(self.latency, Arc::clone(context.clock)))))
    }
}
