//! The features of the Gateway API that this controller supports, as GatewayClasses show them.

use crate::translate::Options;

/// Names of the features that do not depend on options, sorted.
const ALWAYS: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "GRPCRouteRequestHeaderModifier",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayPort8080",
    "GatewayRouteHostnameIntersectionPrecedence",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteBackendURLRewrite",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetryCodes",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// The feature of Gateways with Services of their own.
const OF_SERVICES: &str = "GatewayInfrastructure";

/// Returns the names of the features, sorted. The conformance suite reads them from the status of a GatewayClass, and
/// runs the tests of these features.
pub(super) fn supported_features(options: &Options) -> Vec<&'static str> {
    let mut features = ALWAYS.to_vec();
    if options.gateway_services {
        features.push(OF_SERVICES);
        features.sort_unstable();
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_sorted_and_few_enough() {
        let with_services = Options { gateway_services: true, ..Options::default() };
        for options in [Options::default(), with_services] {
            let features = supported_features(&options);
            assert!(features.is_sorted_by(|a, b| a < b));
            // The limit of the custom resource definition.
            assert!(features.len() <= 64);
            assert_eq!(features.contains(&OF_SERVICES), options.gateway_services);
        }
    }
}
