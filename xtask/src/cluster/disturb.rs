//! What can go wrong with a cluster, on purpose: programs that are killed and nodes that lose their link. It does not
//! touch what runs in pods.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::network::{self, Link};
use super::plan::NodePlan;
use super::state::Process;
use super::{Cluster, control_plane, machine, node};

/// A killed process is gone in milliseconds, unless the machine is overloaded.
const KILL_LIMIT: Duration = Duration::from_secs(20);

impl Cluster {
    /// Kills a node's kubelet; its containers run on. The node is not ready after 20 s.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill_kubelet(&self, node: NodePlan) -> Result<()> {
        self.kill(&node.name(), node::KUBELET)
    }

    /// Starts a node's kubelet after [`Self::kill_kubelet`].
    ///
    /// # Errors
    /// When it runs, or cannot be started.
    pub fn start_kubelet(&self, node: NodePlan) -> Result<()> {
        self.must_not_run(&node.name(), node::KUBELET)?;
        self.node(node).start_kubelet(&self.machine(node)?).map(drop)
    }

    /// Kills the API server.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill_apiserver(&self) -> Result<()> {
        self.kill(control_plane::NAME, control_plane::API_SERVER)
    }

    /// Starts the API server after [`Self::kill_apiserver`], waits until it is ready, and starts the controllers anew. They
    /// would come back by themselves, but each of their watches after a pause that grows to a minute, until which no pod is
    /// made and no endpoint is told. (Controllers that elect a leader end when they cannot renew their lease.)
    ///
    /// # Errors
    /// When it runs, or one cannot be started, or it does not become ready.
    pub fn start_apiserver(&self) -> Result<()> {
        self.must_not_run(control_plane::NAME, control_plane::API_SERVER)?;
        let machine = self.control_machine()?;
        let control_plane = self.control_plane(&machine);
        control_plane.wait_for_api_server(&control_plane.start_api_server()?)?;
        for controller in [control_plane::CONTROLLER_MANAGER, control_plane::SCHEDULER] {
            self.kill(control_plane::NAME, controller)?;
        }
        control_plane.start_controllers()
    }

    /// Pulls a node's network link out.
    ///
    /// # Errors
    /// When ip(8) fails.
    pub fn partition(&self, node: NodePlan) -> Result<()> {
        network::set_link(node, Link::Down)
    }

    /// Plugs a node's network link in again.
    ///
    /// # Errors
    /// When ip(8) fails.
    pub fn heal(&self, node: NodePlan) -> Result<()> {
        network::set_link(node, Link::Up)
    }

    fn kill(&self, machine: &str, name: &str) -> Result<()> {
        machine::end(&self.find(machine, name)?, KILL_LIMIT)
    }

    fn must_not_run(&self, machine: &str, name: &str) -> Result<()> {
        let Process { pid, .. } = self.find(machine, name)?;
        ensure!(!self.find(machine, name)?.is_alive(), "`{name}` runs on `{machine}` as process {pid}; kill it first");
        Ok(())
    }
}
