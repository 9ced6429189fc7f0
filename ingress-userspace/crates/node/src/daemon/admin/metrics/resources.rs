//! Metrics of the process, its workers, its certificates and its kernel maps.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{
    super::{CertificateState, MapFill, Metrics},
    ProcessState, Scrape, counter, counters, gauge, gauges,
};

/// Certificates shown without the metrics by host: those that end first, so that alerts about them remain possible.
const CERTIFICATES_FEW: usize = 100;

/// The metrics whose names Prometheus' client libraries agree on; they have no prefix of ours.
#[derive(Debug)]
pub(super) struct ProcessMetrics(pub(super) Option<ProcessState>);

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(process) = &self.0 else { return Ok(()) };
        let ProcessState { cpu, started, resident_bytes, virtual_bytes, open_fds, max_fds, workers: _ } = process;
        let encoder = &mut encoder;
        counter(encoder, "process_cpu_seconds", "User and system CPU time of the process", cpu.as_secs_f64())?;
        for (name, help, value) in [
            ("process_start_time_seconds", "Start of the process, as time since 1970", started.as_secs_f64()),
            ("process_resident_memory_bytes", "Resident memory", *resident_bytes as f64),
            ("process_virtual_memory_bytes", "Virtual memory", *virtual_bytes as f64),
            ("process_open_fds", "Open file descriptors", *open_fds as f64),
            ("process_max_fds", "Limit of open file descriptors", *max_fds as f64),
        ] {
            gauge(encoder, name, help, value)?;
        }
        Ok(())
    }
}

impl Scrape {
    pub(super) fn encode_build(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        gauges(encoder, "build_info", "1, with the version of this process as a label", [(labels, 1)].into_iter())
    }

    pub(super) fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rows = self.workers.iter().map(|(number, connections)| ([("worker", *number)], *connections as u64));
        gauges(encoder, "worker_connections", "Client connections open now, by worker", rows)?;
        let rows = self.worker_cpu.iter().map(|(number, cpu)| ([("worker", *number)], cpu.as_secs_f64()));
        counters(encoder, "worker_cpu_seconds", "User and system CPU time of the thread of a worker", rows)
    }

    pub(super) fn encode_certificates(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let CertificateState { ends, names_on_fallback } = &self.certificates;
        let rows = ends.iter().map(|(origin, end)| ([("secret", &**origin)], end.as_secs()));
        let help = "End of validity of a certificate in use, as time since 1970";
        gauges(encoder, "certificate_not_after_timestamp_seconds", help, rows)?;
        let help = "Names of hosts with TLS that get the default or the self-signed certificate, because their own is missing or unusable";
        gauge(encoder, "certificate_fallback_hosts", help, *names_on_fallback as u64)
    }

    pub(super) fn encode_fills(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rows = self.fills.iter().map(|MapFill { map, entries, .. }| ([("map", *map)], *entries as u64));
        gauges(encoder, "kernel_map_entries", "Entries of a kernel map that can run out of room", rows)?;
        let rows = self.fills.iter().map(|MapFill { map, capacity, .. }| ([("map", *map)], *capacity as u64));
        gauges(encoder, "kernel_map_capacity", "Room of a kernel map in entries", rows)
    }
}

impl CertificateState {
    /// Returns the part that is shown: all certificates, or the first ones to end without the metrics by host.
    pub(super) fn shown(mut self, metrics: Metrics) -> Self {
        self.ends.sort_unstable_by(|(a, a_end), (b, b_end)| (a_end, a).cmp(&(b_end, b)));
        if metrics != Metrics::All {
            self.ends.truncate(CERTIFICATES_FEW);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[test]
    fn without_hosts_the_first_certificates_to_end_are_shown() {
        let ends = (0..300_u64).rev().map(|end| (Arc::from(format!("a/{end}")), Duration::from_secs(end))).collect();
        let state = CertificateState { ends, names_on_fallback: 2 };
        let shown = |metrics| state.clone().shown(metrics).ends;
        assert_eq!(shown(Metrics::All).len(), 300);
        let few = shown(Metrics::WithoutHosts);
        assert_eq!(few.len(), CERTIFICATES_FEW);
        assert_eq!((&*few[0].0, &*few[99].0), ("a/0", "a/99"));
    }
}
