//! Trace settings: values as they are read, before they are combined.

use std::{sync::Arc, time::Duration};

use super::super::values::{Read, number};
use ingress_model::{Sampler, Traces};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedTraces {
    /// Empty disables tracing.
    pub(super) collector: String,
    pub(super) port: u16,
    pub(super) service: String,
    pub(super) sampler: Kind,
    /// In millionths.
    pub(super) ratio: u32,
    pub(super) follows_parent: bool,
    pub(super) queue_max: usize,
    pub(super) delay: Duration,
    pub(super) batch_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Always,
    Never,
    Ratio,
}

impl Default for ParsedTraces {
    fn default() -> Self {
        Self {
            collector: String::new(),
            port: 4317,
            service: "nginx".to_owned(),
            sampler: Kind::Always,
            ratio: 10_000,
            follows_parent: true,
            queue_max: 2048,
            delay: Duration::from_secs(5),
            batch_max: 512,
        }
    }
}

impl ParsedTraces {
    pub(super) fn made(self) -> Option<Arc<Traces>> {
        let Self { collector, port, service, sampler, ratio, follows_parent, queue_max, delay, batch_max } = self;
        let sampler = match sampler {
            Kind::Always => Sampler::Always,
            Kind::Never => Sampler::Never,
            Kind::Ratio => Sampler::Ratio(ratio),
        };
        let (collector, service) = (collector.into(), service.into());
        let traces = Traces { collector, port, service, sampler, follows_parent, queue_max, delay, batch_max };
        (!traces.collector.is_empty()).then(|| Arc::new(traces))
    }

    pub(super) fn collector(&mut self, value: &str) -> Read {
        let is_host = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        self.collector =
            Some(value).filter(|_| is_host).ok_or("a host, as `collector.otel.svc`, or an address")?.into();
        Ok(())
    }

    pub(super) fn sampler(&mut self, value: &str) -> Read {
        self.sampler = match value {
            "AlwaysOn" => Kind::Always,
            "AlwaysOff" => Kind::Never,
            "TraceIdRatioBased" => Kind::Ratio,
            _ => return Err("`AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`".into()),
        };
        Ok(())
    }

    pub(super) fn ratio(&mut self, value: &str) -> Read {
        let ratio = value.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        self.ratio = (ratio.ok_or("a number from 0 to 1")? * f64::from(Sampler::MILLION)).round() as u32;
        Ok(())
    }

    pub(super) fn service(&mut self, value: &str) -> Read {
        let is_name = !value.is_empty() && !value.chars().any(char::is_control) && value.len() <= 255;
        let is_word = is_name && !value.contains(['$', ' ']);
        self.service = Some(value).filter(|_| is_word).ok_or("a name without spaces")?.into();
        Ok(())
    }

    pub(super) fn count(value: &str, field: &mut usize) -> Read {
        number(value, 1..=1_000_000, field).ok_or_else(|| "a number from 1 to 1000000".into())
    }

    pub(super) fn delay(&mut self, value: &str) -> Read {
        let mut milliseconds = 0;
        number(value, 1..=3_600_000, &mut milliseconds).ok_or("a number of milliseconds from 1 to 3600000")?;
        self.delay = Duration::from_millis(milliseconds);
        Ok(())
    }
}
