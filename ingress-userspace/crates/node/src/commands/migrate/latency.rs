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

use super::histogram::{Histogram, Series};

/// Longest time for a reading.
const READ_MAX: Duration = Duration::from_secs(3);
/// Longest text of metrics in bytes.
const TEXT_MAX: usize = 64 << 20;
/// Readings that are compared: a minute.
const READINGS: usize = 12;
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

/// Responses of the last minute, of xdp-ingress and of the other controller.
#[derive(Debug, Default)]
pub(super) struct LatencyWindow {
    last: Option<[Series; 2]>,
    /// The responses between two readings each.
    increments: VecDeque<[Histogram; 2]>,
    /// Last known 99th percentile of the other controller in seconds.
    other: Option<f64>,
}

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
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?.as_str();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        // Without a user name, the host comes first.
        let port = match authority.strip_prefix(host).ok_or_else(wrong)? {
            "" => 80,
            rest => rest.strip_prefix(':').and_then(port).ok_or_else(wrong)?,
        };
        if authority.contains('@') {
            return Err(wrong());
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        Ok(Self { host: host.trim_matches(['[', ']']).to_owned(), port, target: target.to_owned() })
    }
}

fn port(text: &str) -> Option<u16> {
    let has_digits_alone = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| has_digits_alone && *port != 0)
}

impl Source {
    /// Returns the response times in the histogram `name`.
    ///
    /// # Errors
    /// Fails if the metrics cannot be read, or do not have that histogram.
    pub(super) async fn read(&self, name: &str) -> anyhow::Result<Series> {
        let text = timeout(READ_MAX, self.text()).await.map_err(|_late| anyhow::anyhow!("no answer within 3 s"));
        let text = text.and_then(|text| text).with_context(|| format!("cannot read the metrics at `{self}`"))?;
        Series::parse(&text, name).with_context(|| {
            format!(
                "the metrics at `{self}` have no response times (`{name}`); ingress-nginx has them with \
                 `--enable-metrics`, and once it has answered a request"
            )
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

// === impl LatencyWindow ===

impl LatencyWindow {
    /// Adds a reading of xdp-ingress and of the other controller.
    ///
    /// The other controller gets few requests at a large share: then all its responses count. If they are too few as
    /// well, as after a restart, its last known percentile stays.
    pub(super) fn add(&mut self, own: Series, other: Series) {
        if let Some([own_then, other_then]) = &self.last {
            if self.increments.len() == READINGS {
                self.increments.pop_front();
            }
            self.increments.push_back([own.since(own_then), other.since(other_then)]);
        }
        let recent = Histogram::sum(self.increments.iter().map(|[_, other]| other)).percentile();
        self.other = recent.or_else(|| other.sum().percentile()).or(self.other);
        self.last = Some([own, other]);
    }

    fn percentile(&self) -> Option<f64> {
        Histogram::sum(self.increments.iter().map(|[own, _]| own)).percentile()
    }

    /// Returns whether the other controller has answered enough to be compared with.
    pub(super) fn knows_other(&self) -> bool {
        self.other.is_some()
    }

    /// Returns the response times of xdp-ingress if they are above the limit.
    pub(super) fn excess(&self, limit: LatencyLimit) -> Option<Slowness> {
        let (limit, other) = match limit {
            LatencyLimit::Times(times) => (times * self.other?, self.other),
            LatencyLimit::Time(time) => (time.as_secs_f64(), None),
        };
        self.percentile().filter(|own| *own > limit).map(|own| Slowness { own, limit, other })
    }
}

impl fmt::Display for LatencyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percentile() {
            None => f.write_str("p99 not known yet")?,
            Some(own) => write!(f, "p99 {}", Shown(own))?,
        }
        self.other.map_or(Ok(()), |other| write!(f, " (other controller {})", Shown(other)))
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
    use super::{
        super::histogram::{NGINX, OWN, tests::metrics},
        *,
    };

    #[test]
    fn a_slow_percent_of_the_responses_exceeds_the_limit() {
        let limit = LatencyLimit::Times(2.0);
        let slow_before = (1_000, 500);
        for (other_before, own, other, expect) in [
            (slow_before, (1_000, 0), (1_000, 0), false),
            (slow_before, (980, 20), (1_000, 0), true),
            (slow_before, (995, 5), (1_000, 0), false),
            (slow_before, (980, 20), (980, 20), false),
            // Too few to judge.
            (slow_before, (50, 40), (1_000, 0), false),
            // All responses of the other controller count if there are few new ones.
            (slow_before, (980, 20), (0, 10), false),
            ((1_500, 0), (980, 20), (10, 0), true),
        ] {
            let mut window = LatencyWindow::default();
            window.add(metrics(OWN, 5_000, 5_000), metrics(NGINX, other_before.0, other_before.1));
            let other = metrics(NGINX, other_before.0 + other.0, other_before.1 + other.1);
            window.add(metrics(OWN, 5_000 + own.0, 5_000 + own.1), other);
            assert_eq!(window.excess(limit).is_some(), expect, "{own:?} {other_before:?} {window}");
        }
        let mut window = LatencyWindow::default();
        window.add(Series::default(), Series::default());
        window.add(metrics(OWN, 980, 20), Series::default());
        assert!(!window.knows_other() && window.excess(limit).is_none());
        let slow = window.excess(LatencyLimit::Time(Duration::from_millis(50))).expect("too slow").to_string();
        assert_eq!(slow, "too slow: p99 is 52.5 ms and the limit 50.0 ms");
        assert_eq!(window.excess(LatencyLimit::Time(Duration::from_millis(100))), None);
    }

    #[test]
    fn a_restart_of_the_other_controller_keeps_the_limit() {
        let mut window = LatencyWindow::default();
        window.add(metrics(OWN, 0, 0), metrics(NGINX, 1_500, 0));
        for reading in 1..40 {
            window.add(metrics(OWN, reading * 980, reading * 20), metrics(NGINX, 1, 0));
            assert!(window.excess(LatencyLimit::Times(2.0)).is_some(), "{reading} {window}");
        }
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut window = LatencyWindow::default();
        window.add(metrics(OWN, 0, 0), Series::default());
        for reading in 1..=13 {
            window.add(metrics(OWN, reading * 1_000, 500), Series::default());
            let is_slow = window.excess(LatencyLimit::Time(Duration::from_millis(50))).is_some();
            assert_eq!(is_slow, reading <= 12, "{reading} {window}");
        }
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
        for wrong in [
            "",
            "127.0.0.1:10254",
            "https://node/metrics",
            "/metrics",
            "http:///metrics",
            "http://127.0.0.1:102540/metrics",
            "http://node:0/metrics",
            "http://node:/metrics",
            "http://[::1]x/metrics",
            "http://user@node/metrics",
            "http://node@node/metrics",
        ] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }
}
