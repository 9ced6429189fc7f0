//! Response times on both sides of a share, from the metrics of xdp-ingress and of the other controller. Pure except for
//! [`Source::read`].

use std::{collections::VecDeque, fmt, str::FromStr, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// Names of the histograms: that of xdp-ingress, and that of ingress-nginx.
const NAMES: [&str; 2] =
    ["xdp_ingress_host_request_duration_seconds", "nginx_ingress_controller_request_duration_seconds"];
/// Longest time for a reading.
const READ_MAX: Duration = Duration::from_secs(3);
/// Longest text of metrics in bytes.
const TEXT_MAX: usize = 64 << 20;
/// Readings that are compared: a minute.
const READINGS: usize = 12;
/// Least number of responses to judge: among fewer, the slowest one is the 99th percentile.
const LEAST: u64 = 100;
/// The part of the responses that are at most as slow.
const PART: f64 = 0.99;

/// Limit for the 99th percentile of the response times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LatencyLimit {
    /// So many times that of the other controller.
    Times(f64),
    Time(Duration),
}

/// Metrics that a process serves over plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    host: String,
    port: u16,
    target: String,
}

/// Number of responses by the upper bound of their time in seconds, each with those of all smaller bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram(Vec<(f64, u64)>);

/// The readings of the last minute.
#[derive(Debug, Default)]
pub(super) struct LatencyWindow(VecDeque<[Histogram; 2]>);

/// Response times above the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slowness {
    own: f64,
    limit: f64,
    other: Option<f64>,
}

// === impl LatencyLimit ===

impl FromStr for LatencyLimit {
    type Err = ();

    /// Parses the text behind `p99>`: `2x`, or a duration with a unit.
    fn from_str(text: &str) -> Result<Self, ()> {
        if let Some(times) = text.strip_suffix('x') {
            let times = times.parse().ok().filter(|times| (1.0..=1_000.0).contains(times));
            return times.map(Self::Times).ok_or(());
        }
        let has_unit = text.ends_with('s');
        let time = ingress_model::duration::parse(text).filter(|time| has_unit && !time.is_zero());
        time.map(Self::Time).ok_or(())
    }
}

// === impl Source ===

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no URL of the form `http://127.0.0.1:10254/metrics`");
        let uri: Uri = text.parse().map_err(|_invalid| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            target: target.to_owned(),
        })
    }
}

impl Source {
    /// Returns the response times of all hosts together.
    ///
    /// # Errors
    /// Fails if the metrics cannot be read, or have no response times.
    pub(super) async fn read(&self) -> anyhow::Result<Histogram> {
        let text = timeout(READ_MAX, self.text()).await.map_err(|_late| anyhow::anyhow!("no answer within 3 s"));
        let text = text.and_then(|text| text).with_context(|| format!("cannot read the metrics at `{self}`"))?;
        Histogram::parse(&text).with_context(|| {
            format!("the metrics at `{self}` have no response times; ingress-nginx has them with `--enable-metrics`")
        })
    }

    async fn text(&self) -> anyhow::Result<String> {
        let Self { host, port, target } = self;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        let request = Request::get(target).header(header::HOST, format!("{host}:{port}"));
        let response = requests.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), TEXT_MAX).collect().await;
        driver.abort();
        if status != StatusCode::OK {
            bail!("the status is {status}");
        }
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        Ok(String::from_utf8(body.into())?)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, target } = self;
        if host.contains(':') {
            write!(f, "http://[{host}]:{port}{target}")
        } else {
            write!(f, "http://{host}:{port}{target}")
        }
    }
}

// === impl Histogram ===

impl Histogram {
    /// Parses the text format of Prometheus, and sums the series of all labels. Returns `None` without the histogram.
    fn parse(text: &str) -> Option<Self> {
        let mut found: Option<Self> =
            text.lines().any(|line| NAMES.iter().any(|name| is_type(line, name))).then(Self::default);
        for line in text.lines() {
            let Some(labels) = NAMES.iter().find_map(|name| line.strip_prefix(name)?.strip_prefix("_bucket{")) else {
                continue;
            };
            let Some((bound, count)) = bucket(labels) else { continue };
            found.get_or_insert_default().add(bound, count);
        }
        found
    }

    fn add(&mut self, bound: f64, count: u64) {
        match self.0.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => self.0[at].1 += count,
            Err(at) => self.0.insert(at, (bound, count)),
        }
    }

    fn count(&self) -> u64 {
        self.0.last().map_or(0, |(_, count)| *count)
    }

    /// Returns the responses since `then`; all of them if the process has begun again.
    fn since(&self, then: &Self) -> Self {
        let before = |bound: f64| then.0.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count);
        if self.0.iter().any(|(bound, count)| *count < before(*bound)) {
            return self.clone();
        }
        Self(self.0.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect())
    }

    /// Returns the 99th percentile in seconds, as Prometheus estimates it, or infinity beyond the last bound; `None` for
    /// too few responses.
    fn percentile(&self) -> Option<f64> {
        let all = self.count();
        if all < LEAST {
            return None;
        }
        let rank = PART * all as f64;
        let (mut below, mut start) = (0, 0.0);
        for &(bound, count) in &self.0 {
            if count as f64 >= rank {
                let part = (rank - below as f64) / (count.saturating_sub(below).max(1)) as f64;
                return Some(if bound.is_finite() { start + (bound - start) * part } else { bound });
            }
            (below, start) = (count, bound);
        }
        None
    }
}

/// Returns whether a line declares the histogram: without responses, it has no series.
fn is_type(line: &str, name: &str) -> bool {
    line.strip_prefix("# TYPE ").is_some_and(|rest| rest.split(' ').next() == Some(name))
}

/// Parses labels and value of a bucket.
fn bucket(labels: &str) -> Option<(f64, u64)> {
    // The bound is no text of a client, and other labels have their quotation marks escaped.
    let (_, bound) = labels.rsplit_once("le=\"")?;
    let (bound, rest) = bound.split_once('"')?;
    let value = rest.rsplit_once('}')?.1.split_whitespace().next()?;
    let count = value.parse::<f64>().ok().filter(|count| count.is_finite() && *count >= 0.0)?;
    let bound: f64 = bound.parse().ok().filter(|bound: &f64| !bound.is_nan())?;
    Some((bound, count as u64))
}

// === impl LatencyWindow ===

impl LatencyWindow {
    /// Adds a reading of xdp-ingress and of the other controller.
    pub(super) fn add(&mut self, own: Histogram, other: Histogram) {
        if self.0.len() > READINGS {
            self.0.pop_front();
        }
        self.0.push_back([own, other]);
    }

    /// Returns the response times of both sides within the window. The other controller gets few requests at a large share:
    /// then all its responses count.
    fn percentiles(&self) -> [Option<f64>; 2] {
        let Some(([own_then, other_then], [own, other])) = self.0.front().zip(self.0.back()) else { return [None; 2] };
        let recent = other.since(other_then).percentile();
        [own.since(own_then).percentile(), recent.or_else(|| other.percentile())]
    }

    /// Returns whether the other controller has answered enough to be compared with.
    pub(super) fn knows_other(&self) -> bool {
        self.percentiles()[1].is_some()
    }

    /// Returns the response times of xdp-ingress if they are above the limit.
    pub(super) fn excess(&self, limit: LatencyLimit) -> Option<Slowness> {
        let [own, other] = self.percentiles();
        let (limit, other) = match limit {
            LatencyLimit::Times(times) => (times * other?, other),
            LatencyLimit::Time(time) => (time.as_secs_f64(), None),
        };
        own.filter(|own| *own > limit).map(|own| Slowness { own, limit, other })
    }
}

impl fmt::Display for LatencyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [own, other] = self.percentiles();
        match own {
            None => f.write_str("p99 not known yet")?,
            Some(own) => write!(f, "p99 {}", Shown(own))?,
        }
        other.map_or(Ok(()), |other| write!(f, " (other controller {})", Shown(other)))
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, limit, other } = *self;
        write!(f, "too slow: p99 is {} and the limit {}", Shown(own), Shown(limit))?;
        other.map_or(Ok(()), |other| write!(f, ", with {} of the other controller", Shown(other)))
    }
}

/// A time in seconds.
struct Shown(f64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_finite() {
            write!(f, "{:.1} ms", self.0 * 1_000.0)
        } else {
            f.write_str("above the largest bucket")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the metrics with `fast` responses up to 5 ms, and `slow` ones up to 100 ms.
    fn metrics(name: &str, fast: u64, slow: u64) -> Histogram {
        let all = fast + slow;
        let text = format!(
            "# TYPE {name} histogram\n{name}_bucket{{host=\"a le=\\\"1\\\"\",le=\"0.005\"}} {fast}\n\
             {name}_bucket{{host=\"a\",le=\"0.1\"}} {all}\n{name}_bucket{{host=\"a\",le=\"+Inf\"}} {all}\n\
             {name}_sum{{host=\"a\"}} 1.5\n{name}_bucket{{host=\"b\",le=\"0.005\"}} 0\n{name}_bucket{{torn\n"
        );
        Histogram::parse(&text).expect("a histogram")
    }

    fn both(own: (u64, u64), other: (u64, u64)) -> (Histogram, Histogram) {
        (metrics(NAMES[0], own.0, own.1), metrics(NAMES[1], other.0, other.1))
    }

    #[test]
    fn a_slow_percent_of_the_responses_exceeds_the_limit() {
        let limit = LatencyLimit::Times(2.0);
        for (own, other, expect) in [
            ((1_000, 0), (1_000, 0), false),
            ((980, 20), (1_000, 0), true),
            ((995, 5), (1_000, 0), false),
            ((980, 20), (980, 20), false),
            // Too few to judge.
            ((50, 40), (1_000, 0), false),
            // All responses of the other controller count if there are few new ones.
            ((980, 20), (0, 10), false),
        ] {
            let mut window = LatencyWindow::default();
            let (before_own, before_other) = both((5_000, 5_000), (1_000, 500));
            window.add(before_own, before_other);
            let (own_now, other_now) = both((5_000 + own.0, 5_000 + own.1), (1_000 + other.0, 500 + other.1));
            window.add(own_now, other_now);
            assert_eq!(window.excess(limit).is_some(), expect, "{own:?} {other:?} {window}");
        }
        let mut window = LatencyWindow::default();
        window.add(Histogram::default(), Histogram::default());
        window.add(metrics(NAMES[0], 980, 20), Histogram::default());
        assert!(!window.knows_other() && window.excess(limit).is_none());
        let slow = window.excess(LatencyLimit::Time(Duration::from_millis(50))).expect("too slow").to_string();
        assert_eq!(slow, "too slow: p99 is 52.5 ms and the limit 50.0 ms");
        assert_eq!(window.excess(LatencyLimit::Time(Duration::from_millis(100))), None);
    }

    #[test]
    fn a_process_that_began_again_counts_from_its_start() {
        let (now, then) = (metrics(NAMES[0], 10, 5), metrics(NAMES[0], 1_000, 0));
        assert_eq!(now.since(&then), now);
        assert_eq!(metrics(NAMES[0], 1_010, 5).since(&then).count(), 15);
    }

    #[test]
    fn times_beyond_the_largest_bucket_are_infinite() {
        let name = NAMES[0];
        let text = format!("{name}_bucket{{le=\"10.0\"}} 5\n{name}_bucket{{le=\"+Inf\"}} 1e+03\n");
        let histogram = Histogram::parse(&text).expect("a histogram");
        assert_eq!(histogram.percentile(), Some(f64::INFINITY));
        assert_eq!(Histogram::parse("other_bucket{le=\"1\"} 1\n"), None);
        let empty = format!("# TYPE {name} histogram\n");
        assert_eq!(Histogram::parse(&empty), Some(Histogram::default()));
    }

    #[test]
    fn metrics_have_a_plain_url() {
        for (text, shown) in [
            ("http://127.0.0.1:10254/metrics", "http://127.0.0.1:10254/metrics"),
            ("http://[::1]:9110/metrics", "http://[::1]:9110/metrics"),
            ("http://node", "http://node:80/"),
        ] {
            assert_eq!(text.parse::<Source>().expect(text).to_string(), shown);
        }
        for wrong in ["", "127.0.0.1:10254", "https://node/metrics", "/metrics", "http:///metrics"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }
}
