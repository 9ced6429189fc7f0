//! HTTPRoutes.

use super::{
    attach::{attach, hostnames, reaching},
    forwarding, matches,
    policy::{self, RoutePolicies},
    report::Flaw,
    route::{MadeRoute, RouteRules},
    rules::{ReadRules, Rules, WrittenRule, read_each},
};
use crate::{
    change::ObjectId,
    cluster::Stored,
    gateway::route::{HttpMatch, HttpRoute, HttpRule},
    translate::{Context, features::Globals},
};

/// Makes an HTTPRoute; `None` if it refers to no Gateway of this controller.
pub(crate) fn make(
    id: &ObjectId,
    stored: &Stored<HttpRoute>,
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
    let ReadRules { requests, flaw, unresolved } =
        read_each(id, None, &found, |rules| read(&route.spec.rules, rules, &policies, globals, context));
    let flaw = names.err().or(flaw);
    Some(MadeRoute::new(id, stored, found, flaw, unresolved, RouteRules::Requests(requests), context.lookup))
}

/// Reads all rules, even if one has a flaw.
fn read(
    written: &[HttpRule],
    rules: &mut Rules<'_>,
    policies: &Result<RoutePolicies, Flaw>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Result<(), Flaw> {
    let policies = policies.as_ref().map_err(Flaw::clone)?;
    rules.expressions.charge(policies.expressions())?;
    let all = [HttpRule::default()];
    let written = if written.is_empty() { &all } else { written };
    let mut flaw = None;
    for (index, rule) in written.iter().enumerate() {
        let HttpRule { name: _, matches, filters, backend_refs, timeouts, retry } = rule;
        let all = [HttpMatch::default()];
        let matches = if matches.is_empty() { &all } else { &**matches };
        let demands = matches.iter().map(|demand| matches::read(demand, &mut rules.expressions)).collect();
        let forwarding = forwarding::read(timeouts, retry.as_ref(), policies.forwarding(index, globals));
        let written = WrittenRule { index, demands, filters, backends: backend_refs, forwarding };
        if let Err(found) = rules.add(written, policies, context) {
            flaw.get_or_insert(found);
        }
    }
    flaw.map_or(Ok(()), Err)
}
