//! The lines of one family.

use std::fmt::{self, Write};

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::duration_buckets::Durations;
use crate::families::{Family, FamilyKind};

/// What lines of a family are written to.
pub(super) struct Samples<'a> {
    encoder: MetricEncoder<'a>,
    family: &'static Family,
}

/// The labels of a line.
struct Labels<'a> {
    names: &'static [&'static str],
    values: &'a [&'a str],
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.names.iter().zip(self.values) {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            key.write_str(name)?;
            let mut text = key.encode_label_value()?;
            text.write_str(value)?;
            text.finish()?;
        }
        Ok(())
    }
}

/// Writes the head of a family and its lines.
pub(super) fn write_family(
    encoder: &mut DescriptorEncoder<'_>,
    family: &'static Family,
    write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
) -> fmt::Result {
    let kind = match family.kind {
        FamilyKind::Counter => MetricType::Counter,
        FamilyKind::Gauge => MetricType::Gauge,
        FamilyKind::Histogram => MetricType::Histogram,
        FamilyKind::Info => MetricType::Info,
    };
    let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
    let encoder = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
    write(&mut Samples { encoder, family })
}

impl Samples<'_> {
    /// Has the encoder write a line with these labels.
    fn line(
        &mut self,
        values: &[&str],
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let names = self.family.labels;
        assert_eq!(names.len(), values.len(), "a value for each label of {}", self.family.name);
        if values.is_empty() {
            return write(&mut self.encoder);
        }
        write(&mut self.encoder.encode_family(&Labels { names, values })?)
    }

    /// A whole number.
    pub(super) fn count(&mut self, labels: &[&str], value: u64) -> fmt::Result {
        match self.family.kind {
            FamilyKind::Counter => {
                self.line(labels, |it| it.encode_counter::<NoLabelSet, u64, f64>(&value, None))
            }
            FamilyKind::Gauge | FamilyKind::Histogram | FamilyKind::Info => {
                self.line(labels, |it| it.encode_gauge(&value))
            }
        }
    }

    /// A whole number that may be negative, of a gauge.
    pub(super) fn integer(&mut self, labels: &[&str], value: i64) -> fmt::Result {
        self.line(labels, |it| it.encode_gauge(&value))
    }

    /// Any number, of a gauge.
    pub(super) fn number(&mut self, labels: &[&str], value: f64) -> fmt::Result {
        self.line(labels, |it| it.encode_gauge(&value))
    }

    /// A time that was counted, in seconds.
    pub(super) fn nanoseconds(&mut self, labels: &[&str], ns: u64) -> fmt::Result {
        let seconds = float(ns) / 1e9;
        self.line(labels, |it| it.encode_counter::<NoLabelSet, f64, f64>(&seconds, None))
    }

    /// Names only.
    pub(super) fn info(&mut self, labels: &[&str]) -> fmt::Result {
        let labels = Labels { names: self.family.labels, values: labels };
        self.encoder.encode_info(&labels)
    }

    /// A histogram.
    pub(super) fn durations(&mut self, labels: &[&str], durations: &Durations) -> fmt::Result {
        let Durations { count, sum, buckets } = durations;
        self.line(labels, |it| it.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None))
    }
}

/// A sum that grows grows as a double, too: rounding keeps the order of numbers.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact for 104 days of nanoseconds, then to some of them"
)]
fn float(count: u64) -> f64 {
    count as f64
}
