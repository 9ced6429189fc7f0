//! Deliberate failures of a cluster: kills programs and cuts the links of nodes. It does not touch programs in pods.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::network::{self, Link};
use super::plan::NodePlan;
use super::state::Process;
use super::{Cluster, control_plane, machine, node};

/// A killed process is gone in milliseconds, unless the machine is overloaded.
const KILL_LIMIT: Duration = Duration::from_secs(20);

impl Cluster {
    /// Kills a node's kubelet; its containers keep running. The node becomes not ready after 20 s.
    ///
    /// # Errors
    /// Fails if the process does not end.
    pub fn kill_kubelet(&self, node: NodePlan) -> Result<()> {
        self.kill(&node.name(), node::KUBELET)
    }

    /// Starts a node's kubelet after [`Self::kill_kubelet`].
    ///
    /// # Errors
    /// Fails if the kubelet is running already, or cannot be started.
    pub fn start_kubelet(&self, node: NodePlan) -> Result<()> {
        self.must_not_run(&node.name(), node::KUBELET)?;
        self.node(node).start_kubelet(&self.machine(node)?).map(drop)
    }

    /// Kills the API server.
    ///
    /// # Errors
    /// Fails if the process does not end.
    pub fn kill_apiserver(&self) -> Result<()> {
        self.kill(control_plane::NAME, control_plane::API_SERVER)
    }

    /// Starts the API server after [`Self::kill_apiserver`], waits until it is ready, and restarts the controllers.
    /// They would recover by themselves, but each of their watches reconnects only after a pause that grows to a
    /// minute. Until then no pod is created and no endpoint is published. (Controllers with leader election end if they
    /// cannot renew their lease.)
    ///
    /// # Errors
    /// Fails if the server is running already, a program cannot be started, or the server does not become ready.
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

    /// Cuts a node's network link.
    ///
    /// # Errors
    /// Fails if ip(8) fails.
    pub fn partition(&self, node: NodePlan) -> Result<()> {
        network::set_link(node, Link::Down)
    }

    /// Restores a node's network link.
    ///
    /// # Errors
    /// Fails if ip(8) fails.
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
