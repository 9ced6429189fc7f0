//! GRPCRoutes. A method is a path: `/service/method`.

use std::sync::Arc;

use super::{
    attach::{attach, hostnames, reaching},
    matches::{Expressions, read_headers},
    policy::{self, RoutePolicies},
    report::Flaw,
    route::{MadeRoute, RouteRules},
    rules::{Demand, ReadRules, Rules, WrittenRule, read_each},
};
use crate::{
    change::ObjectId,
    cluster::Stored,
    gateway::route::{GrpcMatch, GrpcMethodMatch, GrpcRoute, GrpcRule, MatchKind},
    translate::{
        Context,
        features::Globals,
        text::{shorten, shorten_error},
    },
};
use ingress_model::{Conditions, PathMatch, Protocol};

/// Makes a GRPCRoute; `None` if it refers to no Gateway of this controller.
pub(crate) fn make(
    id: &ObjectId,
    stored: &Stored<GrpcRoute>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Option<MadeRoute> {
    let route = &*stored.object;
    let names = hostnames(&route.spec.hostnames);
    let found = attach(id, &route.spec.parent_refs, reaching(&names), context);
    if found.is_empty() {
        return None;
    }
    let filters = route.spec.rules.iter().map(|rule| &*rule.filters);
    let policies = policy::read(id, &stored.origin, &route.metadata, filters, globals, context);
    // Backends speak gRPC, whether their ports say so or not.
    let protocol = Some(Protocol::H2c);
    let ReadRules { requests, flaw, unresolved } =
        read_each(id, protocol, &found, |rules| read(&route.spec.rules, rules, &policies, globals, context));
    let flaw = names.err().or(flaw);
    Some(MadeRoute::new(id, stored, found, flaw, unresolved, RouteRules::Requests(requests), context.lookup))
}

/// Reads all rules, even if one has a flaw.
fn read(
    written: &[GrpcRule],
    rules: &mut Rules<'_>,
    policies: &Result<RoutePolicies, Flaw>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Result<(), Flaw> {
    let policies = policies.as_ref().map_err(Flaw::clone)?;
    rules.expressions.charge(policies.expressions())?;
    let all = [GrpcRule::default()];
    let written = if written.is_empty() { &all } else { written };
    let mut flaw = None;
    for (index, GrpcRule { name: _, matches, filters, backend_refs }) in written.iter().enumerate() {
        let all = [GrpcMatch::default()];
        let matches = if matches.is_empty() { &all } else { &**matches };
        let demands = matches.iter().map(|demand| read_match(demand, &mut rules.expressions)).collect();
        let forwarding = Ok(Arc::clone(policies.forwarding(index, globals)));
        let written = WrittenRule { index, demands, filters, backends: backend_refs, forwarding };
        if let Err(found) = rules.add(written, policies, context) {
            flaw.get_or_insert(found);
        }
    }
    flaw.map_or(Ok(()), Err)
}

fn read_match(GrpcMatch { method, headers }: &GrpcMatch, expressions: &mut Expressions) -> Result<Demand, Flaw> {
    let headers = read_headers(headers, expressions)?;
    let default = GrpcMethodMatch::default();
    let path = read_method(method.as_ref().unwrap_or(&default), headers.is_empty(), expressions)?;
    Ok((path, Conditions { headers, ..Conditions::default() }))
}

/// Returns the paths of a method. Only without further demands (`is_alone`) it may have any service.
fn read_method(demand: &GrpcMethodMatch, is_alone: bool, expressions: &mut Expressions) -> Result<PathMatch, Flaw> {
    let GrpcMethodMatch { kind, service, method } = demand;
    if *kind != MatchKind::Exact {
        let message = format!("methods of type `{}` are not supported; use `Exact`", shorten(kind.as_str()));
        return Err(Flaw::unsupported(message));
    }
    let path = match (service.as_deref(), method.as_deref()) {
        (None, None) => PathMatch::prefix("/"),
        (Some(service), Some(method)) => PathMatch::exact(&format!("/{service}/{method}")),
        (Some(service), None) => PathMatch::prefix(&format!("/{service}")),
        (None, Some(method)) if !is_name(method) => {
            return Err(Flaw::unsupported(format!("`{}` is no name of a method; correct it", shorten(method))));
        }
        (None, Some(_)) if !is_alone => {
            let message = "a method of any service cannot be combined with headers; name the service";
            return Err(Flaw::unsupported(message));
        }
        (None, Some(method)) => return expressions.method_of_any_service(method),
    };
    path.map_err(|error| Flaw::unsupported(format!("{}; correct the match", shorten_error(&error))))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
