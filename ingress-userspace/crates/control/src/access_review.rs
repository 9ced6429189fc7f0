//! Asks the API server whether the owner of a bearer token may read something that is not an object of the cluster: a
//! TokenReview names the user, a SubjectAccessReview tells the user's rights.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::timeout;

use crate::{Contact, KubernetesConfig, SourceError, source::kube::connect};

/// Time limit of both requests together.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the API server about bearer tokens. It needs the right to `create` `tokenreviews` and `subjectaccessreviews`.
#[derive(Clone)]
pub struct AccessReviews {
    client: Client,
}

/// Rights of the owner of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user of this name may read.
    Allowed(Arc<str>),
    /// The token belongs to this user, who may not read.
    Forbidden(Arc<str>),
    /// The API server does not know the token, or it has expired.
    Unauthenticated,
}

/// Reason why the API server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("the API server did not answer within {} seconds", TIMEOUT.as_secs())]
    Late,
    #[error(
        "the API server did not review a token; grant the service account `create` on `tokenreviews` and `subjectaccessreviews`"
    )]
    Review(#[from] Box<kube::Error>),
}

impl AccessReviews {
    /// Returns a client of the API server that `config` names.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or used.
    pub async fn connect(config: &KubernetesConfig) -> Result<Self, SourceError> {
        // The signs of life of these requests say nothing about the configuration that is served.
        Ok(Self { client: connect(config, &Contact::default()).await? })
    }

    /// Returns whether the owner of `token` may `get` the path `path`, which a ClusterRole grants by `nonResourceURLs`.
    ///
    /// # Errors
    /// Fails if the API server cannot be asked.
    pub async fn review(&self, token: &str, path: &str) -> Result<Access, AccessError> {
        timeout(TIMEOUT, self.ask(token, path)).await.map_err(|_elapsed| AccessError::Late)?
    }

    async fn ask(&self, token: &str, path: &str) -> Result<Access, AccessError> {
        let spec = TokenReviewSpec { audiences: None, token: token.to_owned() };
        let review = TokenReview { metadata: ObjectMeta::default(), spec, status: None };
        let tokens = Api::<TokenReview>::all(self.client.clone());
        let review = tokens.create(&PostParams::default(), &review).await.map_err(Box::new)?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).unwrap_or_default();
        let UserInfo { extra, groups, uid, username: Some(name) } = user else { return Ok(Access::Unauthenticated) };
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            extra,
            groups,
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
            uid,
            user: Some(name.clone()),
        };
        let review = SubjectAccessReview { metadata: ObjectMeta::default(), spec, status: None };
        let rights = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = rights.create(&PostParams::default(), &review).await.map_err(Box::new)?;
        let is_allowed = review.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        Ok(if is_allowed { Access::Allowed(name.into()) } else { Access::Forbidden(name.into()) })
    }
}

impl std::fmt::Debug for AccessReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessReviews").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns reviews by a server that gives these answers, and checks what it is asked.
    fn server(token: Value, rights: Value) -> AccessReviews {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (token, rights) = (token.clone(), rights.clone());
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                let asked: Value = serde_json::from_slice(&body).expect("JSON");
                let (kind, status) = match path.as_str() {
                    "/apis/authentication.k8s.io/v1/tokenreviews" => {
                        assert_eq!(asked["spec"], json!({ "token": "t0ken" }));
                        ("TokenReview", token)
                    }
                    "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                        let attributes = json!({ "path": "/viewer", "verb": "get" });
                        let spec = json!({ "user": "ann", "groups": ["ops"], "nonResourceAttributes": attributes });
                        assert_eq!(asked["spec"], spec);
                        ("SubjectAccessReview", rights)
                    }
                    other => panic!("{other}"),
                };
                let answer = match status {
                    Value::Null => Response::builder().status(403).body(Body::from(forbidden().into_bytes())),
                    status => {
                        let document = json!({ "kind": kind, "metadata": {}, "spec": asked["spec"], "status": status });
                        Response::builder().status(201).body(Body::from(document.to_string().into_bytes()))
                    }
                };
                Ok::<_, tower::BoxError>(answer.expect("valid"))
            }
        });
        AccessReviews { client: Client::new(service, "default") }
    }

    fn forbidden() -> String {
        json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 })
            .to_string()
    }

    fn user() -> Value {
        json!({ "authenticated": true, "user": { "username": "ann", "groups": ["ops"] } })
    }

    #[tokio::test]
    async fn a_token_allows_only_what_its_user_may_read() {
        let cases = [
            (user(), json!({ "allowed": true }), Access::Allowed("ann".into())),
            (user(), json!({ "allowed": false }), Access::Forbidden("ann".into())),
            (user(), json!({ "allowed": true, "denied": true }), Access::Forbidden("ann".into())),
            (json!({ "authenticated": false }), json!({ "allowed": true }), Access::Unauthenticated),
            (json!({ "user": { "username": "ann" } }), json!({ "allowed": true }), Access::Unauthenticated),
            (json!({ "authenticated": true }), json!({ "allowed": true }), Access::Unauthenticated),
        ];
        for (token, rights, expected) in cases {
            let access = server(token.clone(), rights.clone()).review("t0ken", "/viewer").await;
            assert_eq!(access.expect("an answer"), expected, "{token} {rights}");
        }
    }

    #[tokio::test]
    async fn a_missing_right_names_the_remedy() {
        for (token, rights) in [(Value::Null, json!({})), (user(), Value::Null)] {
            let error = server(token, rights).review("t0ken", "/viewer").await.expect_err("the right is missing");
            assert!(error.to_string().contains("grant the service account `create` on `tokenreviews`"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_not_waited_for() {
        let service =
            tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, tower::BoxError>>());
        let reviews = AccessReviews { client: Client::new(service, "default") };
        assert!(matches!(reviews.review("t0ken", "/viewer").await, Err(AccessError::Late)));
    }
}
