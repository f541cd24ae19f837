//! Which iothreads serve what: `x-blockdev-set-iothread`, `ringloom-move-queue`, `ringloom-pin-queue`, `query-ringloom-queues`,
//! `query-ringloom-iothreads`, `query-ringloom-pools`.

use block::nanoseconds;
use graph::NodeUser;
use iothread::{Iothread, PlacedSource};
use request_path::Counters;
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::{CommandContext, answer, done};
use crate::qmp_error::QmpError;
use crate::types::{
    RingloomIothreadInfo, RingloomLatencyBucket, RingloomPlacementInfo, RingloomPoolInfo,
    RingloomQueueInfo,
};

pub(super) static SET_IOTHREAD: Keys = Keys {
    of: "x-blockdev-set-iothread",
    supported: &[&[
        required("node-name", ValueType::Text),
        required("iothread", ValueType::TextOrNull),
        optional("force", ValueType::Flag),
    ]],
    later: &[],
};

pub(super) static MOVE_QUEUE: Keys = Keys {
    of: "ringloom-move-queue",
    supported: &[&[
        required("export", ValueType::Text),
        required("queue", ValueType::Number),
        required("iothread", ValueType::Text),
    ]],
    later: &[],
};

pub(super) fn set_iothread(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.required_text("node-name")?;
    let iothread = fields.text_or_null("iothread")?;
    let is_forced = fields.flag("force")?.unwrap_or(false);
    let graph = context.state.graph();
    if graph.node(&name).is_err() {
        return Err(QmpError::generic(format!("Failed to find node with node-name='{name}'")));
    }
    let exports = graph.model().exports_above(&NodeUser::Node(name.clone()));
    if let Some(export) = exports.first().filter(|_| !is_forced) {
        return Err(QmpError::generic(format!(
            "Node {name} is below export '{export}' and could be in use (use force=true to override \
             this check)"
        )));
    }
    if let Some(id) = &iothread
        && context.state.objects().all(|object| object.id != *id)
    {
        return Err(QmpError::generic(format!("Cannot find iothread {id}")));
    }
    context.state.set_iothread(&name, iothread.as_deref())?;
    done()
}

pub(super) fn move_queue(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let (export, iothread) = (fields.required_text("export")?, fields.required_text("iothread")?);
    let number = fields.number("queue")?;
    let number = number.ok_or_else(|| QmpError::generic("parameter 'queue' is missing"))?;
    let too_large =
        |_| QmpError::generic(format!("parameter 'queue' is below 65536, not {number}"));
    let queue = u16::try_from(number).map_err(too_large)?;
    context.state.move_queue(&export, queue, &iothread)?;
    done()
}

pub(super) static PIN_QUEUE: Keys = Keys {
    of: "ringloom-pin-queue",
    supported: &[&[
        required("export", ValueType::Text),
        required("queue", ValueType::Number),
        optional("iothread", ValueType::Number),
    ]],
    later: &[],
};

/// The iothread is one of the pool, by number; without it the pool places the queue.
pub(super) fn pin_queue(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let export = fields.required_text("export")?;
    let mut number = |key: &str| {
        let too_large = |number| {
            move |_| QmpError::generic(format!("parameter '{key}' is below 65536, not {number}"))
        };
        let number = fields.number(key)?;
        number.map(|it| u16::try_from(it).map_err(too_large(it))).transpose()
    };
    let (queue, iothread) = (number("queue")?, number("iothread")?);
    let queue = queue.ok_or_else(|| QmpError::generic("parameter 'queue' is missing"))?;
    context.state.pin_queue(&export, queue, iothread)?;
    done()
}

pub(super) fn queues(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let mut sources = context.state.sources();
    sources.sort_by(|one, other| {
        let key = |source: &PlacedSource| (source.name().export.clone(), source.name().queue);
        key(one).cmp(&key(other))
    });
    answer(sources.iter().map(|source| queue_info(source)).collect::<Vec<_>>())
}

fn queue_info(source: &PlacedSource) -> RingloomQueueInfo {
    let (name, gauges) = (source.name(), source.gauges());
    let Counters {
        reads,
        writes,
        flushes,
        discards,
        write_zeroes,
        errors,
        read_bytes,
        written_bytes,
    } = gauges.counters();
    let bucket = |(from, to, count)| RingloomLatencyBucket {
        from: nanoseconds(from),
        to: nanoseconds(to),
        count,
    };
    RingloomQueueInfo {
        export: name.export.clone(),
        queue: name.queue.into(),
        iothread: source.iothread_name(),
        reads,
        writes,
        flushes,
        discards,
        write_zeroes,
        errors,
        read_bytes,
        written_bytes,
        in_flight: gauges.in_flight.get(),
        moves: gauges.moves.get(),
        move_ns: gauges.move_ns.get(),
        open_ns: gauges.open_ns.get(),
        take_wait_ns: gauges.take_wait_ns.get(),
        answer_wait_ns: gauges.answer_wait_ns.get(),
        latency: gauges.latency.buckets().map(bucket).collect(),
    }
}

pub(super) fn iothreads(
    context: &mut CommandContext<'_>,
    _: OptionFields,
) -> Result<Value, QmpError> {
    let sources = context.state.sources();
    let now = context.state.clock().now();
    let info = |iothread: &Iothread| {
        let served = sources.iter().filter(|it| it.iothread_name() == iothread.name());
        let (usage, times) = (iothread.usage().gauges(), iothread.usage().thread_times());
        RingloomIothreadInfo {
            name: iothread.name().to_owned(),
            queues: served.count() as u64,
            work_ns: usage.work_ns.get(),
            poll_ns: usage.poll_ns.get(),
            sleep_ns: usage.sleep_ns.get(),
            cpu_ns: times.map(|times| nanoseconds(times.cpu)),
            run_delay_ns: times.map(|times| nanoseconds(times.run_delay)),
            stalled_ns: nanoseconds(iothread.usage().unanswered(now)),
        }
    };
    answer(context.state.iothreads().iter().map(|it| info(it)).collect::<Vec<_>>())
}

pub(super) fn pools(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let info = |pool: control::PoolReport| RingloomPoolInfo {
        name: pool.name,
        max: pool.max as u64,
        mode: pool.mode.word(),
        iothreads: pool.iothreads,
        exports: pool
            .exports
            .into_iter()
            .map(|export| RingloomPlacementInfo {
                export: export.name,
                iothreads: export.iothreads.map(|count| count as u64),
                gain_max: export.gain_max,
                is_trying: export.is_trying,
                tries: export.trial.map(|(iothreads, _)| iothreads as u64),
                gain_predicted: export.trial.map(|(_, gain)| gain),
                note: export.note.map(|it| it.to_string()),
            })
            .collect(),
    };
    answer(context.state.pool_reports().into_iter().map(info).collect::<Vec<_>>())
}
