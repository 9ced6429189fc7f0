//! Encodes counters, gauges and histograms of durations, with or without labels.

use std::{fmt, time::Duration};

use ingress_proxy::{DURATION_BOUNDS, DurationsView};
use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, MetricEncoder,
        NoLabelSet,
    },
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

/// Returns rows for a label with fixed values, each with its number.
pub(super) fn by<const N: usize>(
    label: &'static str,
    values: [&'static str; N],
    numbers: [u64; N],
) -> impl Iterator<Item = ([(&'static str, &'static str); 1], u64)> {
    values.into_iter().zip(numbers).map(move |(value, number)| ([(label, value)], number))
}

pub(super) fn counter<V: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: V,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

/// Encodes a counter with one series per set of labels.
pub(super) fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (L, V)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in rows {
        ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

pub(super) fn gauge<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: V,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

/// Encodes a gauge with one series per set of labels.
pub(super) fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (L, u64)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in rows {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes a series of a histogram of durations.
pub(super) fn durations(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&'static str, &str); 1],
    DurationsView { buckets, sum }: &DurationsView,
) -> Result<(), fmt::Error> {
    let bounds = DURATION_BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
    let all: Vec<_> = bounds.zip(*buckets).collect();
    let mut family = metric.encode_family(labels)?;
    family.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), buckets.iter().sum(), &all, None)
}
