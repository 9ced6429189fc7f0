//! Builds clients for the API server: its address and certificates, and this process's credentials. Which requests to
//! send is decided elsewhere.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::{
    BodyExt,
    combinators::{MapFrame, UnsyncBoxBody},
};
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, RustlsTlsError},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls_pki_types::ServerName;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, timeout::Timeout, util::BoxService};

use super::{
    KubernetesConfig,
    connections::{Connections, KubeConnector, PATIENCE, Patience},
};
use crate::{
    SourceError,
    contact::Contact,
    source::names::{Dns, NameKind},
};

type Frame = http_body::Frame<bytes::Bytes>;
/// The layers of a client, for requests of any kind.
type Stack = BoxService<Request<Body>, Response<UnsyncBoxBody<bytes::Bytes, BoxError>>, BoxError>;

/// Time limit of a connection attempt, TLS included. An API server is near, and attempts are repeated while it cannot
/// be reached.
const MAX_CONNECT: Duration = Duration::from_secs(5);

/// Returns a client for the cluster that `config` names, or that of the environment, which records signs of life of the
/// server in `contact`.
///
/// If the server has a name, it is resolved like the names of Services, because a static binary has no NSS.
///
/// # Errors
/// If the configuration cannot be read or used.
pub async fn connect(config: &KubernetesConfig, contact: &Contact) -> Result<Client, SourceError> {
    let KubernetesConfig { kubeconfig, context, namespace: _, namespace_selector: _ } = config;
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => {
            let error = |source| SourceError::Kubeconfig { path: path.clone(), source };
            let file = Kubeconfig::read_from(path).map_err(error)?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(error)?
        }
        // A context is one of a file, so the service account of a pod does not count.
        (None, Some(_)) => {
            let path = || std::env::var_os("KUBECONFIG").unwrap_or_else(|| "~/.kube/config".into()).into();
            let error = |source| SourceError::Kubeconfig { path: path(), source };
            Config::from_kubeconfig(&options).await.map_err(error)?
        }
        (None, None) => Config::infer().await.map_err(|source| SourceError::NoCluster { source })?,
    };
    let error = |source| SourceError::Client { source };
    let layer = Notes { contact: contact.clone() };
    if config.proxy_url.is_some() {
        // kube decides whether the proxy can be used, and reports why not.
        return Ok(ClientBuilder::try_from(config).map_err(error)?.with_layer(&layer).build());
    }
    let builder = stack(config, Dns::system(NameKind::Operator), PATIENCE).map_err(error)?;
    Ok(builder.with_layer(&layer).build())
}

/// Returns the layers that kube builds, on this module's own connections. Retries are left out, because the caller
/// decides on them.
pub(super) fn stack(config: Config, dns: Dns, patience: Patience) -> Result<ClientBuilder<Stack>, kube::Error> {
    let connector = connector(&config, dns, patience)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(Connections::new(config.cluster_url, connector, patience));
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace))
}

pub(super) fn connector(config: &Config, dns: Dns, patience: Patience) -> Result<KubeConnector, kube::Error> {
    let resolve = tower::service_fn(move |name: Name| {
        let dns = dns.clone();
        async move {
            let answer = dns.search(name.as_str()).await?;
            Ok::<_, BoxError>(
                answer.addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect::<Vec<_>>().into_iter(),
            )
        }
    });
    let mut connector = HttpConnector::new_with_resolver(resolve);
    connector.enforce_http(false);
    patience.apply(&mut connector);
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name: Arc<dyn ResolveServerName + Send + Sync> = match &config.tls_server_name {
        Some(name) => {
            let invalid = |source| kube::Error::RustlsTls(RustlsTlsError::InvalidServerName(source));
            Arc::new(FixedServerNameResolver::new(ServerName::try_from(name.clone()).map_err(invalid)?))
        }
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    Ok(KubeConnector::new(Timeout::new(HttpsConnector::new(connector, tls, false, name), MAX_CONNECT)))
}

/// Layer that records signs of life of the server.
#[derive(Clone)]
pub(super) struct Notes {
    pub(super) contact: Contact,
}

impl<S> Layer<S> for Notes {
    type Service = Noting<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Noting { inner, contact: self.contact.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Noting<S> {
    inner: S,
    contact: Contact,
}

type Note = Box<dyn FnMut(Frame) -> Frame + Send>;

impl<S, B> Service<Request<Body>> for Noting<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + 'static,
{
    type Response = Response<MapFrame<B, Note>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let contact = self.contact.clone();
        let path = request.uri().path().to_owned();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            let is_success = response.status().is_success();
            let note: Note = Box::new(move |frame| {
                if is_success {
                    contact.note(&path);
                }
                frame
            });
            Ok(response.map(|body| body.map_frame(note)))
        })
    }
}
