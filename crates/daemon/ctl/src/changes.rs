//! What changes something: each is one command of the daemon, after questions at most.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::arguments::{DiskWord, ExportWord, FilterWord, Format, IothreadWord, NbdWord};
use crate::client::QmpClient;
use crate::host_path::{absolute_text, is_block_device};
use crate::inventory::{Inventory, objects_of, property, text};
use crate::table::Answer;
use crate::units::{Limit, SizeChange, bytes, limits, no};

/// Carries a command out. Arguments that are null are left out; those that are not are its answer to programs.
fn carry_out(
    client: &mut QmpClient,
    command: &str,
    mut arguments: Value,
    said: &str,
) -> Result<Answer> {
    if let Some(all) = arguments.as_object_mut() {
        all.retain(|_, value| !value.is_null());
    }
    client.ask(command, &arguments)?;
    Ok(Answer::said(said, arguments))
}

pub(crate) fn resize(
    client: &mut QmpClient,
    target: &str,
    change: SizeChange,
    may_shrink: bool,
) -> Result<Answer> {
    let inventory = Inventory::read(client)?;
    let node = inventory.target(target)?;
    let before = inventory.node(&node).and_then(|it| it["size"].as_u64()).unwrap_or_default();
    let wanted = match change {
        SizeChange::To(size) => size,
        SizeChange::By(more) => before.saturating_add(more),
    };
    let (had, has) = (bytes(before), bytes(wanted));
    ensure!(
        wanted >= before || may_shrink,
        "node {node} has {had}: what lies behind {has} would be lost; --shrink allows that"
    );
    let arguments = json!({"node-name": node, "size": wanted});
    carry_out(client, "block_resize", arguments, &format!("node {node}: {had} -> {has}"))
}

pub(crate) fn snapshot(
    client: &mut QmpClient,
    target: &str,
    file: &str,
    name: Option<&str>,
    is_volatile: bool,
) -> Result<Answer> {
    let (node, file) = (Inventory::read(client)?.target(target)?, absolute_text(file)?);
    let arguments = json!({
        "node-name": node, "snapshot-file": file, "snapshot-node-name": name, "format": "qcow2",
        "ringloom-volatile": is_volatile.then_some(true),
    });
    let said = format!("node {node} stays as it is; {file} takes what is written");
    carry_out(client, "blockdev-snapshot-sync", arguments, &said)
}

/// Checks that there is an object of that type.
fn check_object(client: &mut QmpClient, kind: &str, id: &str) -> Result<()> {
    let all = objects_of(client, kind)?;
    ensure!(all.iter().any(|it| it == id), "there is {}", no(kind, id, &all));
    Ok(())
}

/// Sets a property if a value is given; gives the one it has then.
fn set(client: &mut QmpClient, id: &str, name: &str, value: Option<Value>) -> Result<Value> {
    if let Some(value) = value {
        let path = format!("/objects/{id}");
        client.ask("qom-set", &json!({"path": path, "property": name, "value": value}))?;
    }
    property(client, id, name)
}

pub(crate) fn throttle(client: &mut QmpClient, group: &str, settings: &[Limit]) -> Result<Answer> {
    check_object(client, "throttle-group", group)?;
    let given: Map<_, _> =
        settings.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    let given = (!given.is_empty()).then_some(given.into());
    let value = set(client, group, "limits", given)?;
    let said = format!("throttle group {group}: {}", limits(&value));
    Ok(Answer::said(&said, json!({"id": group, "limits": value})))
}

pub(crate) fn polling(
    client: &mut QmpClient,
    iothread: &str,
    nanoseconds: Option<u64>,
) -> Result<Answer> {
    check_object(client, "iothread", iothread)?;
    let value = set(client, iothread, "poll-max-ns", nanoseconds.map(Value::from))?;
    let said = format!("iothread {iothread}: looks for work for up to {value} ns");
    Ok(Answer::said(&said, json!({"id": iothread, "poll-max-ns": value})))
}

pub(crate) fn iothread(client: &mut QmpClient, word: &IothreadWord) -> Result<Answer> {
    match word {
        IothreadWord::Add { id, polling } => {
            let arguments = json!({"qom-type": "iothread", "id": id, "poll-max-ns": polling});
            carry_out(client, "object-add", arguments, &format!("iothread {id} has started"))
        }
        IothreadWord::Del { id } => {
            check_object(client, "iothread", id)?;
            let said = format!("iothread {id} has ended");
            carry_out(client, "object-del", json!({"id": id}), &said)
        }
    }
}

pub(crate) fn export(client: &mut QmpClient, word: &ExportWord) -> Result<Answer> {
    match word {
        ExportWord::Add { id, node, path, nbd: _, name, read_only, num_queues, iothreads } => {
            // The peer takes one, as a word.
            let iothread = match iothreads.as_slice() {
                [] => Value::Null,
                [one] => one.as_str().into(),
                several => several.into(),
            };
            let mut arguments =
                json!({"id": id, "node-name": node, "writable": !read_only, "iothread": iothread});
            let at = if let Some(path) = path {
                let path = absolute_text(path)?;
                arguments["type"] = "vhost-user-blk".into();
                arguments["addr"] = json!({"type": "unix", "path": path});
                arguments["num-queues"] = json!(num_queues);
                format!("at {path}")
            } else {
                arguments["type"] = "nbd".into();
                arguments["name"] = json!(name);
                format!("over NBD as '{}'", name.as_ref().unwrap_or(node))
            };
            let said = format!("export {id}: node {node} is served {at}");
            carry_out(client, "block-export-add", arguments, &said)
        }
        ExportWord::Del { id, force } => {
            let arguments = json!({"id": id, "mode": if *force { "hard" } else { "safe" }});
            carry_out(client, "block-export-del", arguments, &format!("export {id} is gone"))
        }
    }
}

pub(crate) fn nbd(client: &mut QmpClient, word: &NbdWord) -> Result<Answer> {
    match word {
        NbdWord::Start { address, tls_creds, max_connections } => {
            let tcp = (!address.contains('/')).then(|| address.rsplit_once(':')).flatten();
            let addr = if let Some((host, port)) = tcp {
                let host =
                    host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
                json!({"type": "inet", "data": {"host": host, "port": port}})
            } else {
                json!({"type": "unix", "data": {"path": absolute_text(address)?}})
            };
            let arguments =
                json!({"addr": addr, "tls-creds": tls_creds, "max-connections": max_connections});
            let said = format!("the NBD server listens on {address}");
            carry_out(client, "nbd-server-start", arguments, &said)
        }
        NbdWord::Stop => {
            carry_out(client, "nbd-server-stop", json!({}), "the NBD server has stopped")
        }
    }
}

pub(crate) fn disk(client: &mut QmpClient, word: &DiskWord) -> Result<Answer> {
    match word {
        DiskWord::Add { node, file, format, read_only, cached, backing } => {
            let file = absolute_text(file)?;
            let driver = if is_block_device(&file) { "host_device" } else { "file" };
            let bytes = json!({"driver": driver, "filename": file});
            let mut arguments = match format {
                Format::Raw => bytes,
                Format::Qcow2 => json!({"driver": "qcow2", "file": bytes, "backing": backing}),
            };
            arguments["node-name"] = node.as_str().into();
            arguments["read-only"] = (*read_only).into();
            arguments["cache"] = json!({"direct": !cached});
            carry_out(client, "blockdev-add", arguments, &format!("node {node}: {file}"))
        }
        DiskWord::Del { node } => {
            let arguments = json!({"node-name": node});
            carry_out(client, "blockdev-del", arguments, &format!("node {node} is gone"))
        }
    }
}

pub(crate) fn filter(client: &mut QmpClient, word: &FilterWord) -> Result<Answer> {
    let volatile = |is_volatile: bool| is_volatile.then_some(true);
    match word {
        FilterWord::Insert { node, filter, volatile: is_volatile } => {
            let arguments = json!({
                "node": node, "filter": filter, "ringloom-volatile": volatile(*is_volatile),
            });
            let said = format!("filter {filter} is between node {node} and all who use it");
            carry_out(client, "ringloom-insert-filter", arguments, &said)
        }
        FilterWord::Remove { filter, volatile: is_volatile } => {
            let arguments = json!({"filter": filter, "ringloom-volatile": volatile(*is_volatile)});
            let said = format!("nobody uses filter {filter} any more");
            carry_out(client, "ringloom-remove-filter", arguments, &said)
        }
    }
}

/// Moves one queue while its client is there; or all of an export, and of others on its node, for good.
///
/// # Errors
/// If the daemon refuses it, or if there is no such export.
pub fn move_to(
    client: &mut QmpClient,
    id: &str,
    queue: Option<u16>,
    iothread: &str,
) -> Result<Answer> {
    if let Some(queue) = queue {
        let arguments = json!({"export": id, "queue": queue, "iothread": iothread});
        let said = format!("export {id}: queue {queue} is served by {iothread}");
        return carry_out(client, "ringloom-move-queue", arguments, &said);
    }
    let inventory = Inventory::read(client)?;
    let Some(export) = inventory.export(id) else {
        let ids = inventory.exports.iter().map(|it| text(it, "id"));
        bail!("there is {}", no("export", id, ids));
    };
    let node = text(export, "node-name");
    let to = if iothread == "none" { Value::Null } else { iothread.into() };
    let arguments = json!({"node-name": node, "iothread": to, "force": true});
    client.ask("x-blockdev-set-iothread", &arguments)?;
    let said = format!("export {id} and all else above node {node}: served by iothread {iothread}");
    Ok(Answer::said(&said, arguments))
}

/// Has a queue stay where it is put, also after a restart: on the iothread of that number in its pool, or `none`.
///
/// # Errors
/// If the daemon refuses it, or if the number is none.
pub fn pin(client: &mut QmpClient, id: &str, queue: Option<u16>, iothread: &str) -> Result<Answer> {
    let Some(queue) = queue else { bail!("{id}: which queue? as {id}:0") };
    let number = match iothread {
        "none" => None,
        text => Some(text.parse::<u16>().with_context(|| {
            format!("'{text}' is no number of an iothread in the pool, as 0, nor none")
        })?),
    };
    let arguments = json!({"export": id, "queue": queue, "iothread": number});
    let said = match number {
        Some(number) => {
            format!("export {id}: queue {queue} stays on iothread {number} of its pool")
        }
        None => format!("export {id}: queue {queue} is placed by its pool"),
    };
    carry_out(client, "ringloom-pin-queue", arguments, &said)
}

/// Has a pool place queues (`auto`) or leave them where they are (`frozen`), also after a restart.
///
/// # Errors
/// If the daemon refuses it, or if there is no such pool.
pub fn placement(client: &mut QmpClient, pool: &str, mode: &str) -> Result<Answer> {
    check_object(client, "iothread-pool", pool)?;
    let mode = set(client, pool, "mode", Some(mode.into()))?;
    let does = match mode.as_str() {
        Some("frozen") => "queues stay where they are",
        _ => "queues are placed as the load asks",
    };
    Ok(Answer::said(&format!("pool {pool}: {does}"), json!({"id": pool, "mode": mode})))
}

/// What is logged from now on: `debug`, `exports=debug`, or `exports=` for what all do.
pub(crate) fn log(client: &mut QmpClient, setting: &str) -> Result<Answer> {
    let (part, level) = match setting.split_once('=') {
        Some((part, level)) => (Some(part), Some(level).filter(|it| !it.is_empty())),
        None => (None, Some(setting)),
    };
    let said = match (part, level) {
        (Some(part), Some(level)) => format!("{part} logs {level}"),
        (Some(part), None) => format!("{part} logs what all do"),
        (None, level) => {
            format!("all parts without a level of their own log {}", level.unwrap_or_default())
        }
    };
    carry_out(client, "ringloom-log-set", json!({"part": part, "level": level}), &said)
}
