//! Holds back the watches of the Gateway API until a GatewayClass names this controller. Until then, a cluster pays for
//! one watch, and its routes for other controllers take no memory. This module sends no requests.

use std::future::Future;

use tokio::sync::{mpsc, watch};

use super::tracker::{TrackerEvent, WatchId};
use crate::{change::Object, gateway::GatewayApiObject};

/// Opens for all waiting watches, and stays open: a class that goes leaves Gateways behind, whose statuses matter.
pub(super) struct Gate {
    /// The watch of GatewayClasses.
    pub(super) classes: WatchId,
    state: watch::Sender<GateState>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GateState {
    /// The classes have not been read yet.
    #[default]
    Asking,
    /// There is no class of this controller, or the server does not tell.
    Shut,
    Open,
}

/// Runs `watch` once the gate is open. While it is shut, no other part waits for the objects of this watch.
pub(super) async fn behind(
    mut gate: watch::Receiver<GateState>,
    id: WatchId,
    events: mpsc::Sender<(WatchId, TrackerEvent)>,
    watch: impl Future<Output = ()>,
) {
    loop {
        let state = *gate.borrow_and_update();
        match state {
            GateState::Open => return watch.await,
            GateState::Shut if events.send((id, TrackerEvent::Refused)).await.is_err() => return,
            GateState::Shut | GateState::Asking => {}
        }
        if gate.changed().await.is_err() {
            return;
        }
    }
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(classes: WatchId) -> Self {
        Self { classes, state: watch::Sender::default() }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<GateState> {
        self.state.subscribe()
    }

    /// Opens or shuts the gate, if the event says something about classes.
    pub(super) fn look(&self, id: WatchId, event: &TrackerEvent) {
        if id != self.classes {
            return;
        }
        let state = match event {
            TrackerEvent::Listed(Object::GatewayApi(GatewayApiObject::GatewayClass(class)), _)
            | TrackerEvent::Applied(Object::GatewayApi(GatewayApiObject::GatewayClass(class)), _)
                if class.is_ours() =>
            {
                GateState::Open
            }
            TrackerEvent::ListEnds | TrackerEvent::Refused => GateState::Shut,
            _ => return,
        };
        self.state.send_if_modified(|now| {
            let changes = *now != GateState::Open && *now != state;
            if changes {
                *now = state;
            }
            changes
        });
    }
}
