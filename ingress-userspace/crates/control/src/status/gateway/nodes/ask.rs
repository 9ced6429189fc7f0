//! Sends the questions of an [`Inquiry`] to the other replicas, and takes their answers. It decides nothing.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, runtime::watcher};
use tokio::{
    net::UdpSocket,
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    PORT,
    answer::open,
    inquiry::{BOUND, Inquiry},
    wire::{Answer, Item, LENGTH, Question},
};
use crate::{
    clock::expiry,
    status::{
        Options,
        address_watcher::{WatchedObjects, events},
        addresses::PodFacts,
        replicas,
    },
};

/// An [`Inquiry`] that the plan and the questions share.
#[derive(Debug, Default)]
pub(in crate::status::gateway) struct SharedInquiry {
    inquiry: Mutex<Inquiry>,
    /// Told when there are questions.
    asked: Notify,
    /// Told when there are verdicts.
    decided: Notify,
}

/// Questions that were sent and not answered yet, by their number.
#[derive(Debug, Default)]
struct Sent {
    questions: BTreeMap<u64, (IpAddr, Vec<Item>, Instant)>,
    random: RandomState,
    count: u64,
}

/// Asks the replicas of other nodes while there is something to ask, until the future is dropped. `own` is the address
/// of this replica.
pub(in crate::status::gateway) async fn ask_nodes(
    client: &Client,
    options: &Options,
    own: IpAddr,
    shared: &SharedInquiry,
) {
    while !shared.with(|inquiry| inquiry.has_questions()) {
        shared.asked.notified().await;
    }
    let socket = loop {
        match open((own, 0).into()) {
            Ok(socket) => break socket,
            Err(error) => {
                tracing::warn!(address = %own, %error, "cannot ask other nodes whether they serve an object, trying again");
                shared.with(|inquiry| drop(inquiry.take_due(Instant::now())));
                sleep(BOUND).await;
            }
        }
    };
    let api = Api::<Pod>::namespaced(client.clone(), &options.namespace);
    let config = watcher::Config::default().labels(replicas::LABEL);
    let lost = "statuses of Gateways and routes do not say whether other nodes serve them";
    let mut pods = events(api, config, "pods", lost, PodFacts::of).boxed();
    let (mut known, mut asker) = (WatchedObjects::default(), Asker::new(socket, PORT));
    loop {
        tokio::select! {
            event = pods.next() => {
                // The watch begins again by itself, and does not end.
                let Some(event) = event else { return std::future::pending().await };
                known.on(event);
                if let Some(pods) = known.known() {
                    shared.with(|inquiry| inquiry.set_peers(peers(pods, options, own), Instant::now()));
                }
            }
            () = asker.step(shared) => {}
        }
    }
}

/// Returns the other nodes with a Ready replica.
fn peers(pods: &BTreeMap<String, PodFacts>, options: &Options, own: IpAddr) -> BTreeMap<IpAddr, Arc<str>> {
    let others = pods.iter().filter(|(name, pod)| **name != options.identity && pod.is_ready && !pod.is_leaving);
    let addressed = others.filter_map(|(name, pod)| {
        let node = pod.node.as_deref().unwrap_or(name);
        // Another replica of this node is an older process, or a younger one.
        Some((pod.address.filter(|address| *address != own)?, Arc::from(node)))
    });
    addressed.collect()
}

/// The socket of the leader, with the questions on the way.
#[derive(Debug)]
pub(super) struct Asker {
    socket: UdpSocket,
    /// Port of the replicas.
    port: u16,
    sent: Sent,
}

// === impl Asker ===

impl Asker {
    pub(super) fn new(socket: UdpSocket, port: u16) -> Self {
        Self { socket, port, sent: Sent::default() }
    }

    /// Sends the questions that are due, then waits for an answer, the next question, or a new one. Cancel-safe.
    pub(super) async fn step(&mut self, shared: &SharedInquiry) {
        let Self { socket, port, sent } = self;
        let now = Instant::now();
        let (due, next) = shared.with(|inquiry| (inquiry.take_due(now), inquiry.next(now)));
        for (address, items) in due {
            for (question, datagram) in Question::datagrams(items, || sent.number()) {
                match socket.try_send_to(&datagram, SocketAddr::new(address, *port)) {
                    // As if it were lost.
                    Err(error) => tracing::debug!(%address, %error, "cannot ask a node"),
                    Ok(_) => drop(sent.questions.insert(question.nonce, (address, question.items, now))),
                }
            }
        }
        sent.questions.retain(|_, (_, _, at)| now < *at + BOUND);
        let mut buffer = [0; LENGTH + 1];
        tokio::select! {
            received = socket.recv_from(&mut buffer) => sent.take(&buffer, received, *port, shared),
            () = expiry(next) => {}
            () = shared.asked.notified() => {}
        }
    }
}

// === impl Sent ===

impl Sent {
    /// Returns a number that others cannot guess.
    fn number(&mut self) -> u64 {
        self.count += 1;
        self.random.hash_one(self.count)
    }

    /// Takes a datagram, if it is the answer to a question.
    fn take(&mut self, buffer: &[u8], received: io::Result<(usize, SocketAddr)>, port: u16, shared: &SharedInquiry) {
        let (length, sender) = match received {
            Ok(received) => received,
            Err(error) => return tracing::debug!(%error, "cannot read answers of other nodes"),
        };
        let Some(Answer { nonce, serves }) = buffer.get(..length).and_then(Answer::decode) else { return };
        let Some((address, items, _)) = self.questions.get(&nonce) else { return };
        if (*address, port) == (sender.ip(), sender.port()) && items.len() == serves.len() {
            shared.with(|inquiry| inquiry.hear(*address, items, &serves, Instant::now()));
            self.questions.remove(&nonce);
        }
    }
}

// === impl SharedInquiry ===

impl SharedInquiry {
    /// Calls `act`, and tells the other side if that leads to verdicts.
    fn with<T>(&self, act: impl FnOnce(&mut Inquiry) -> T) -> T {
        let mut inquiry = self.inquiry.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut inquiry);
        if inquiry.has_decided() {
            self.decided.notify_one();
        }
        result
    }

    /// Calls `act`, and tells the side that asks if that leads to questions.
    pub(in crate::status::gateway) fn ask<T>(&self, act: impl FnOnce(&mut Inquiry) -> T) -> T {
        let (result, has_questions) = self.with(|inquiry| (act(inquiry), inquiry.has_questions()));
        if has_questions {
            self.asked.notify_one();
        }
        result
    }

    /// Waits until there is a verdict.
    pub(in crate::status::gateway) async fn decided(&self) {
        self.decided.notified().await;
    }
}
