//! Asks the API server whether its caller may change the share of the clients of a node, and writes an event about the
//! change.

use std::time::Duration;

use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::ObjectReference,
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::timeout;

use crate::{Contact, KubernetesConfig, SourceError, source::kube::connect};

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The right, in the words of RBAC; its name is that of the node.
const GROUP: &str = "xdp-ingress.io";
const RESOURCE: &str = "shifts";
const VERB: &str = "update";
/// Where events about objects without a namespace are kept.
const NAMESPACE: &str = "default";
const REPORTER: &str = "xdp-ingress.io/migrate";

/// The right to change the share of a node, and the record of changes.
pub struct NodeRight {
    client: Client,
}

/// Answer of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    Granted,
    Missing,
}

/// Reason why the API server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NodeRightError {
    #[error("the API server did not answer within {} seconds", TIMEOUT.as_secs())]
    Late,
    #[error("the API server refused the request")]
    Refused(#[source] Box<kube::Error>),
}

impl NodeRight {
    /// Returns a client of the API server that `config` names, with the identity that it gives.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or used.
    pub async fn connect(config: &KubernetesConfig) -> Result<Self, SourceError> {
        Ok(Self { client: connect(config, &Contact::default()).await? })
    }

    /// Returns whether the caller may `update` `shifts.xdp-ingress.io` with the name `node`.
    ///
    /// # Errors
    /// Fails if the API server cannot be asked.
    pub async fn check(&self, node: &str) -> Result<Right, NodeRightError> {
        let attributes = ResourceAttributes {
            group: Some(GROUP.to_owned()),
            name: Some(node.to_owned()),
            resource: Some(RESOURCE.to_owned()),
            verb: Some(VERB.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { metadata: ObjectMeta::default(), spec, status: None };
        let reviews = Api::<SelfSubjectAccessReview>::all(self.client.clone());
        let review = answer(reviews.create(&PostParams::default(), &review)).await?;
        let is_granted = review.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        Ok(if is_granted { Right::Granted } else { Right::Missing })
    }

    /// Writes an event about a node.
    ///
    /// # Errors
    /// Fails if the API server does not take it.
    pub async fn record(&self, node: &str, note: &str) -> Result<(), NodeRightError> {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // As in the events of the kubelet, so that `kubectl describe node` shows it.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{node}.share.")),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some("Normal".to_owned()),
            reason: Some("ShareOfClients".to_owned()),
            action: Some("Shift".to_owned()),
            note: Some(note.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(node.to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            ..Event::default()
        };
        let events = Api::<Event>::namespaced(self.client.clone(), NAMESPACE);
        answer(events.create(&PostParams::default(), &event)).await.map(drop)
    }
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, NodeRightError> {
    let answered = timeout(TIMEOUT, request).await.map_err(|_elapsed| NodeRightError::Late)?;
    answered.map_err(|error| NodeRightError::Refused(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client of a server that checks its requests, and answers reviews with `status`.
    fn server(status: Value) -> NodeRight {
        let service = tower::service_fn(move |request: Request<Body>| {
            let status = status.clone();
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                let asked: Value = serde_json::from_slice(&body).expect("JSON");
                let answer = match path.as_str() {
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                        let attributes = json!({
                            "group": "xdp-ingress.io", "name": "node-1", "resource": "shifts", "verb": "update",
                        });
                        assert_eq!(asked["spec"], json!({ "resourceAttributes": attributes }));
                        json!({
                            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                            "spec": asked["spec"], "status": status,
                        })
                    }
                    "/apis/events.k8s.io/v1/namespaces/default/events" => {
                        assert_eq!(asked["regarding"]["name"], "node-1");
                        assert_eq!(asked["note"], "10 %");
                        asked
                    }
                    other => panic!("no request for {other} is expected"),
                };
                let answer = Body::from(serde_json::to_vec(&answer).expect("JSON"));
                Ok::<_, tower::BoxError>(Response::new(answer))
            }
        });
        NodeRight { client: Client::new(service, "default") }
    }

    #[tokio::test]
    async fn the_right_is_named_and_an_event_is_about_the_node() {
        for (status, expect) in [
            (json!({ "allowed": true }), Right::Granted),
            (json!({ "allowed": false }), Right::Missing),
            (json!({ "allowed": true, "denied": true }), Right::Missing),
        ] {
            let server = server(status);
            assert_eq!(server.check("node-1").await.expect("answered"), expect);
            server.record("node-1", "10 %").await.expect("taken");
        }
    }
}
