//! Demands of a Gateway on the certificates of its clients.

use std::sync::Arc;

use super::{authorities::authorities, report::Flaw};
use crate::{
    change::ObjectId,
    gateway::{FrontendTls, FrontendValidation, FrontendValidationMode, GatewayTls},
    translate::{Context, text::shorten},
};
use ingress_model::{ClientCertificates, Demand};

/// Maximum number of certificates between a client's and an authority's. The specification has no limit.
const MAX_DEPTH: usize = 8;

/// Demands of an HTTPS listener on its clients.
#[derive(Default)]
pub(super) struct Clients {
    pub(super) demand: Option<Arc<ClientCertificates>>,
    /// The flaw of the first reference that cannot be used.
    pub(super) unresolved: Option<Flaw>,
    /// The reason for which no client can be verified, so that the listener serves none.
    pub(super) refused: Option<Flaw>,
}

/// Returns the demands of `gateway` on the clients at an HTTPS port.
pub(super) fn clients(gateway: &ObjectId, tls: &GatewayTls, port: u16, context: &Context<'_, '_>) -> Clients {
    let FrontendTls { default, per_port } = &tls.frontend;
    let tls = per_port.iter().find(|of_port| of_port.port == port).map_or(default, |of_port| &of_port.tls);
    let Some(FrontendValidation { ca_certificate_refs, mode }) = &tls.validation else { return Clients::default() };
    let demand = match mode {
        FrontendValidationMode::ValidOnly => Demand::Required,
        FrontendValidationMode::InsecureFallback => Demand::OfAnyIssuer,
        FrontendValidationMode::Other(mode) => {
            let message = format!("validation mode `{}` is not known; use `AllowValidOnly`", shorten(mode));
            return Clients { refused: Some(Flaw::unsupported(message)), ..Clients::default() };
        }
    };
    let (found, unresolved) = authorities(gateway, ca_certificate_refs, context.lookup);
    let Some(authorities) = found else {
        let message =
            unresolved.as_ref().map_or("there are no `caCertificateRefs`; name a ConfigMap", |flaw| &flaw.message);
        let refused = Some(Flaw::new("NoValidCACertificate", message));
        return Clients { unresolved, refused, demand: None };
    };
    let demand = ClientCertificates {
        authorities,
        revoked: Vec::new(),
        demand,
        depth: MAX_DEPTH,
        passed: false,
        name: None,
        error_page: None,
    };
    Clients { demand: Some(Arc::new(demand)), unresolved, refused: None }
}

/// Returns whether a Gateway serves clients without a valid certificate although it names authorities.
pub(super) fn is_insecure(FrontendTls { default, per_port }: &FrontendTls) -> bool {
    let all = per_port.iter().map(|of_port| &of_port.tls).chain([default]);
    all.filter_map(|tls| tls.validation.as_ref())
        .any(|validation| validation.mode == FrontendValidationMode::InsecureFallback)
}
