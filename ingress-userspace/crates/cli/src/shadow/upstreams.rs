//! Names of upstreams in ingress-nginx, as `$proxy_upstream_name` has them.

use std::collections::HashMap;

use ingress_control::cluster::Cluster;
use ingress_model::UpstreamKey;

/// Name of the upstream for requests without a rule, and for error pages of the controller's default backend.
pub(super) const DEFAULT: &str = "upstream-default-backend";
/// Beginning of the names of upstreams for error pages of an Ingress's `default-backend`.
const CUSTOM_DEFAULT: &str = "custom-default-backend-";

/// Names of Services: `namespace-service-port`, where the port is a name or a number.
pub(super) struct UpstreamNames(HashMap<String, UpstreamKey>);

/// Returns whether the upstream makes error pages, or answers requests without a rule.
pub(super) fn is_default(name: &str) -> bool {
    name == DEFAULT || name.starts_with(CUSTOM_DEFAULT)
}

// === impl UpstreamNames ===

impl UpstreamNames {
    pub(super) fn of(cluster: &Cluster) -> Self {
        let mut names = HashMap::new();
        for (name, stored) in cluster.services.iter() {
            for port in &stored.object.ports {
                let (namespace, service) = (&name.namespace, &name.name);
                let number = port.port.to_string();
                for port in [Some(number.as_str()), port.name.as_deref()].into_iter().flatten() {
                    names
                        .insert(format!("{namespace}-{service}-{port}"), UpstreamKey::new(namespace, service, &number));
                }
            }
        }
        Self(names)
    }

    /// Returns whether the name is that of a Service which was read.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns whether ingress-nginx calls the upstream `key` so.
    pub(super) fn is(&self, name: &str, key: &UpstreamKey) -> bool {
        let Some((service, port)) = key.service() else { return false };
        let text = format!("{}-{service}-{port}", key.namespace());
        match (self.0.get(name), self.0.get(&text)) {
            (Some(one), Some(other)) => one == other,
            _ => text == name,
        }
    }
}
