//! The map's notes of the workers that connections were given to.

use aya::maps::{Array, Map, MapData};
use ingress_common::{FlowKey, Handoff, HandoffEntry, map::HANDOFFS, steer::handoff_places};

use crate::sandbox::Sandbox;

pub(crate) struct Handoffs(Array<MapData, HandoffEntry>);

impl Handoffs {
    pub(crate) fn pinned(sandbox: &Sandbox) -> Self {
        Self(Map::Array(sandbox.map(HANDOFFS)).try_into().expect("an array"))
    }

    /// Returns the latest note for a connection.
    #[track_caller]
    pub(crate) fn of(&self, flow: FlowKey) -> Handoff {
        let notes = handoff_places(&flow).map(|place| self.0.get(&place, 0).expect("a place"));
        let notes = notes.into_iter().filter(|entry| entry.flow == flow).map(|entry| entry.handoff);
        notes.max_by_key(|handoff| handoff.time_ns).expect("a note")
    }

    pub(crate) fn lay(&mut self, flow: FlowKey, handoff: Handoff) {
        let [place, _] = handoff_places(&flow);
        self.0.set(place, HandoffEntry { flow, handoff }, 0).expect("laid");
    }
}
