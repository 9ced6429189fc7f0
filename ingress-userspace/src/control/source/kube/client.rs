//! Clients for the API server. It knows how to reach it, and not what to ask.

use std::{
    future::Future,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, Uri};
use http_body_util::{BodyExt, combinators::MapFrame};
use hyper_util::{
    client::legacy::{
        Client as HyperClient,
        connect::{HttpConnector, dns::Name},
    },
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, util::BoxService};

use crate::control::{
    Error,
    contact::Contact,
    source::names::{Dns, Names},
};

type Frame = http_body::Frame<bytes::Bytes>;
/// The layers of a client, for requests of any kind.
type Stack = BoxService<Request<Body>, Response<BoxBody>, BoxError>;
type BoxBody = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, BoxError>;

/// A client for the cluster of `kubeconfig`, or of the environment, whose signs of life are noted in `contact`.
///
/// The name of the server, where it has one, is resolved as the names of Services are: a static binary has no NSS. What a
/// proxy is asked to reach, the proxy resolves.
///
/// # Errors
/// If the configuration cannot be read or used.
pub async fn connect(kubeconfig: Option<&Path>, contact: &Contact) -> Result<Client, Error> {
    let config = match kubeconfig {
        Some(path) => {
            let error = |source| Error::Kubeconfig { path: path.into(), source };
            let file = Kubeconfig::read_from(path).map_err(error)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(error)?
        }
        None => Config::infer().await.map_err(|source| Error::NoCluster { source })?,
    };
    let error = |source| Error::Client { source };
    let layer = Notes { contact: contact.clone() };
    if !is_name(&config.cluster_url) || config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config).map_err(error)?.with_layer(&layer).build());
    }
    Ok(resolving(config, Dns::system(Names::Operator)).map_err(error)?.with_layer(&layer).build())
}

fn is_name(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err()
}

/// The stack of layers that kube builds, on a connector that asks `dns`.
fn resolving(config: Config, dns: Dns) -> Result<ClientBuilder<Stack>, kube::Error> {
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
    connector.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HyperClient::builder(TokioExecutor::new()).build(connector))
        .map_response(|response: Response<hyper::body::Incoming>| {
            response.map(|body| body.map_err(BoxError::from).boxed_unsync())
        });
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace))
}

/// Notes what comes from the server.
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
        let plural = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            let is_success = response.status().is_success();
            let note: Note = Box::new(move |frame| {
                if is_success {
                    contact.note(&plural);
                }
                frame
            });
            Ok(response.map(|body| body.map_frame(note)))
        })
    }
}
