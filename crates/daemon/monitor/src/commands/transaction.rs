//! What a transaction takes: its actions, each with the arguments of the command of that name.

use syntax::{Keys, Union, ValueType, optional, required};

use super::backup::BACKUP;
use super::bitmaps;
use super::drive_jobs::DRIVE_BACKUP;
use super::filters::{INSERT, REMOVE};
use super::images::{SNAPSHOT, SNAPSHOT_SYNC};
use super::internal_snapshots;

static ABORT: Keys = Keys { of: "abort", supported: &[], later: &[] };

static ACTION: Union = Union {
    tag: "type",
    default: None,
    branches: &[
        (
            "abort",
            Keys {
                of: "transaction abort",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&ABORT)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-add",
            Keys {
                of: "transaction block-dirty-bitmap-add",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::ADD)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-clear",
            Keys {
                of: "transaction block-dirty-bitmap-clear",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::BITMAP)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-disable",
            Keys {
                of: "transaction block-dirty-bitmap-disable",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::BITMAP)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-enable",
            Keys {
                of: "transaction block-dirty-bitmap-enable",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::BITMAP)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-merge",
            Keys {
                of: "transaction block-dirty-bitmap-merge",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::MERGE)),
                ]],
                later: &[],
            },
        ),
        (
            "block-dirty-bitmap-remove",
            Keys {
                of: "transaction block-dirty-bitmap-remove",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&bitmaps::BITMAP)),
                ]],
                later: &[],
            },
        ),
        (
            "blockdev-backup",
            Keys {
                of: "transaction blockdev-backup",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&BACKUP)),
                ]],
                later: &[],
            },
        ),
        (
            "blockdev-snapshot",
            Keys {
                of: "transaction blockdev-snapshot",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&SNAPSHOT)),
                ]],
                later: &[],
            },
        ),
        (
            "blockdev-snapshot-internal-sync",
            Keys {
                of: "transaction blockdev-snapshot-internal-sync",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&internal_snapshots::CREATE)),
                ]],
                later: &[],
            },
        ),
        (
            "blockdev-snapshot-sync",
            Keys {
                of: "transaction blockdev-snapshot-sync",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&SNAPSHOT_SYNC)),
                ]],
                later: &[],
            },
        ),
        (
            "drive-backup",
            Keys {
                of: "transaction drive-backup",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&DRIVE_BACKUP)),
                ]],
                later: &[],
            },
        ),
        (
            "ringloom-insert-filter",
            Keys {
                of: "transaction ringloom-insert-filter",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&INSERT)),
                ]],
                later: &[],
            },
        ),
        (
            "ringloom-remove-filter",
            Keys {
                of: "transaction ringloom-remove-filter",
                supported: &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&REMOVE)),
                ]],
                later: &[],
            },
        ),
    ],
    later: &[],
};

static PROPERTIES: Keys = Keys {
    of: "transaction properties",
    supported: &[&[optional("completion-mode", ValueType::Word(&["individual", "grouped"]))]],
    later: &[],
};

pub(super) static TRANSACTION: Keys = Keys {
    of: "transaction",
    supported: &[&[
        required("actions", ValueType::List(&ValueType::Union(&ACTION))),
        optional("properties", ValueType::Object(&PROPERTIES)),
    ]],
    later: &[],
};
