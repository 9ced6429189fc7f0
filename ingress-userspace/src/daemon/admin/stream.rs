//! The stream of events of the API: the state of the node once a second, as server-sent events.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use ingress_cli::counters;
use ingress_common::RawHostId;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Interval, MissedTickBehavior, interval},
};

use super::{AdminSource, HostCounters, api};

/// Maximum number of open streams. Each costs a reading of all counters a second.
pub(super) const VIEWERS_MAX: usize = 8;
/// Interval of events.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of hosts in an event: those with the most requests since the one before.
const HOSTS_MAX: usize = 200;

/// Open streams of a process.
#[derive(Clone, Debug)]
pub(crate) struct Viewers(Arc<Semaphore>);

/// A stream of events for one viewer. Nothing is read between its events.
#[derive(Debug)]
pub(crate) struct EventStream {
    source: Arc<dyn AdminSource>,
    timer: Interval,
    /// Finished requests and received packets of each host at the last event.
    before: HashMap<RawHostId, Activity>,
    _place: OwnedSemaphorePermit,
}

/// Amounts by which hosts are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Activity {
    requests: u64,
    packets: u64,
}

impl Default for Viewers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(VIEWERS_MAX)))
    }
}

impl Viewers {
    /// Returns a stream of the state of `source`, or `None` if there are too many streams.
    pub(super) fn open(&self, source: Arc<dyn AdminSource>) -> Option<EventStream> {
        let place = Arc::clone(&self.0).try_acquire_owned().ok()?;
        let mut timer = interval(EVERY);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(EventStream { source, timer, before: HashMap::new(), _place: place })
    }
}

impl EventStream {
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        ready!(self.timer.poll_tick(cx));
        Poll::Ready(format!("event: state\ndata: {}\n\n", self.state()).into())
    }

    pub(super) fn state(&mut self) -> Value {
        let source = self.source.as_ref();
        let hosts = source.hosts();
        let all = hosts.len();
        let busiest = busiest(hosts, &mut self.before);
        let hosts =
            busiest.iter().map(|HostCounters { host, id, l7, durations: _, net }| counters::host(host, *id, l7, net));
        json!({
            "node": api::node(source),
            "drops": counters::totals(source.totals()),
            "workers": api::workers(source),
            "hosts": { "total": all, "busiest": hosts.collect::<Value>() },
        })
    }
}

/// Returns the hosts with the most activity since `before`, and updates it.
fn busiest(hosts: Vec<HostCounters>, before: &mut HashMap<RawHostId, Activity>) -> Vec<HostCounters> {
    let last = std::mem::take(before);
    let mut ranked: Vec<_> = hosts
        .into_iter()
        .map(|host| {
            let now = Activity { requests: host.l7.requests.to_array().iter().sum(), packets: host.net.rx_packets };
            before.insert(host.id, now);
            // A host of the first event, or one with fewer than before, counts from zero.
            let then = last.get(&host.id).copied().unwrap_or_default();
            let since = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
            let activity =
                Activity { requests: since(now.requests, then.requests), packets: since(now.packets, then.packets) };
            (activity, host)
        })
        .collect();
    let most_first = |one: &(Activity, HostCounters), other: &(Activity, HostCounters)| {
        other.0.cmp(&one.0).then_with(|| one.1.host.cmp(&other.1.host))
    };
    if ranked.len() > HOSTS_MAX {
        ranked.select_nth_unstable_by(HOSTS_MAX, most_first);
        ranked.truncate(HOSTS_MAX);
    }
    ranked.sort_unstable_by(most_first);
    ranked.into_iter().map(|(_, host)| host).collect()
}

#[cfg(test)]
mod tests {
    use ingress_common::{HostL7, HostNet};
    use ingress_proxy::DurationsView;

    use super::*;

    fn host(id: u32, packets: u64) -> HostCounters {
        let net = HostNet { rx_packets: packets, ..HostNet::default() };
        HostCounters {
            host: format!("h{id:05}.test"),
            id,
            l7: HostL7::default(),
            durations: DurationsView::default(),
            net,
        }
    }

    #[test]
    fn the_busiest_hosts_since_the_last_event_come_first() {
        let mut before = HashMap::new();
        let first = busiest((0..10_000).map(|id| host(id, u64::from(id))).collect(), &mut before);
        assert_eq!((first.len(), first[0].id, first[199].id), (200, 9999, 9800));
        let mut next: Vec<_> = (0..10_000).map(|id| host(id, u64::from(id))).collect();
        next[7] = host(7, 7 + 3);
        let second = busiest(next, &mut before);
        assert_eq!((second.len(), second[0].id, second[1].id), (200, 7, 0), "hosts without activity follow by name");
    }

    #[test]
    fn viewers_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        let viewers = Viewers::default();
        let source: Arc<dyn AdminSource> = Arc::new(super::super::testing::Fixed::with(Ok(())));
        let open: Vec<_> = (0..VIEWERS_MAX).map(|_| viewers.open(Arc::clone(&source)).expect("a place")).collect();
        assert!(viewers.open(Arc::clone(&source)).is_none());
        drop(open);
        assert!(viewers.open(source).is_some());
    }
}
