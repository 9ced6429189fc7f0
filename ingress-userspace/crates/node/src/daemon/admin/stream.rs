//! Streams of server-sent events for viewers, one event each second: the state of the node for the API. The dashboard
//! makes its own events.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use ingress_cli::counters;
use ingress_common::RawHostId;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use super::{AdminSource, api, numbered};

/// Maximum number of open streams. Each costs a reading of counters a second.
pub(super) const VIEWERS_MAX: usize = 8;
/// Interval of events.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of hosts in an event: those with the most requests since the one before.
const HOSTS_MAX: usize = 200;

/// Open streams of a process.
#[derive(Clone, Debug)]
pub(super) struct Viewers(Arc<Semaphore>);

/// A stream of events for one viewer. Nothing is read between its events.
pub(crate) struct EventStream(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

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
    /// Returns a stream of the events that `make` returns, or `None` if there are too many streams. Each event is made
    /// on another thread in one of the `turns`, so that the main thread goes on.
    pub(super) fn open(
        &self,
        turns: Arc<Semaphore>,
        make: impl FnMut() -> String + Send + 'static,
    ) -> Option<EventStream> {
        let place = Arc::clone(&self.0).try_acquire_owned().ok()?;
        let mut timer = interval(EVERY);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let events = stream::unfold((timer, make, place), move |(mut timer, mut make, place)| {
            let turns = Arc::clone(&turns);
            async move {
                timer.tick().await;
                // The semaphore is never closed.
                let turn = turns.acquire_owned().await;
                // A panic is logged, and ends the stream.
                let (make, event) = spawn_blocking(move || {
                    let event = make();
                    (make, event)
                })
                .await
                .ok()?;
                drop(turn);
                Some((Bytes::from(event), (timer, make, place)))
            }
        });
        Some(EventStream(Box::pin(events)))
    }
}

impl EventStream {
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

/// Returns a function that makes the next event with the state of the node.
pub(super) fn states(source: Arc<dyn AdminSource>) -> impl FnMut() -> String + Send + 'static {
    // By the number of the host, at the last event.
    let mut before = Vec::new();
    move || format!("event: state\ndata: {}\n\n", state(&*source, &mut before))
}

fn state(source: &dyn AdminSource, before: &mut Vec<Activity>) -> Value {
    let (names, net) = (source.host_names(), source.all_host_net());
    let net = |id: RawHostId| net.get(id as usize).copied().unwrap_or_default();
    let activity =
        |id| Activity { requests: source.host_l7(id).requests.to_array().iter().sum(), packets: net(id).rx_packets };
    let busiest = busiest(numbered(&names), activity, before);
    let hosts = busiest.iter().map(|&(host, id)| counters::host(host, id, &source.host_l7(id), &net(id)));
    json!({
        "node": api::node(source),
        "drops": counters::totals(source.totals()),
        "workers": api::workers(source),
        "hosts": { "total": names.len() + 1, "busiest": hosts.collect::<Value>() },
    })
}

/// Returns the hosts with the most activity since `before`, and updates it.
fn busiest<'n>(
    hosts: impl Iterator<Item = (&'n str, RawHostId)>,
    activity: impl Fn(RawHostId) -> Activity,
    before: &mut Vec<Activity>,
) -> Vec<(&'n str, RawHostId)> {
    let mut ranked: Vec<_> = hosts
        .map(|(host, id)| {
            let now = activity(id);
            if before.len() <= id as usize {
                // A host of the first event counts from zero.
                before.resize(id as usize + 1, Activity::default());
            }
            let then = std::mem::replace(&mut before[id as usize], now);
            // Fewer than before means that another host has got the number.
            let since = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
            let activity =
                Activity { requests: since(now.requests, then.requests), packets: since(now.packets, then.packets) };
            (activity, host, id)
        })
        .collect();
    let most_first =
        |one: &(Activity, &str, _), other: &(Activity, &str, _)| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1));
    if ranked.len() > HOSTS_MAX {
        ranked.select_nth_unstable_by(HOSTS_MAX, most_first);
        ranked.truncate(HOSTS_MAX);
    }
    ranked.sort_unstable_by(most_first);
    ranked.into_iter().map(|(_, host, id)| (host, id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_hosts_since_the_last_event_come_first() {
        let names: Vec<_> = (0..10_000).map(|id| format!("h{id:05}.test")).collect();
        let mut before = Vec::new();
        let mut rank = |packets: &dyn Fn(u32) -> u64| {
            let activity = |id| Activity { requests: 0, packets: packets(id) };
            let hosts = names.iter().map(String::as_str).zip(0..);
            busiest(hosts, activity, &mut before).into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        let first = rank(&u64::from);
        assert_eq!((first.len(), first[0], first[199]), (200, 9999, 9800));
        let second = rank(&|id| u64::from(id) + if id == 7 { 3 } else { 0 });
        assert_eq!((second.len(), second[0], second[1]), (200, 7, 0), "hosts without activity follow by name");
    }

    #[test]
    fn viewers_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        let viewers = Viewers::default();
        let turns = Arc::new(Semaphore::new(1));
        let open = || viewers.open(Arc::clone(&turns), String::new);
        let places: Vec<_> = (0..VIEWERS_MAX).map(|_| open().expect("a place")).collect();
        assert!(open().is_none());
        drop(places);
        assert!(open().is_some());
    }
}
