//! Further names of the hosts of one Ingress: names with the same rules, and names that redirect to a host. Claims of
//! other Ingresses are not known here.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    claims::{AliasClaim, AliasKind, HostClaim, MAX_PATHS, RulesClaim},
    ingress::Builder,
};
use crate::outcome::Reason;
use ingress_model::{Action, Host, HostPattern, PathMatch, Redirect, Rule, Template};

/// Adds to `claims` the names that `builder`'s Ingress asks for by `server-alias` and `from-to-www-redirect`. Names
/// with rules in the same Ingress stay as they are.
///
/// Aliases are further names of `first`, the first host that its rules name.
pub(super) fn add(
    claims: &mut BTreeMap<HostPattern, HostClaim>,
    first: Option<&HostPattern>,
    builder: &mut Builder<'_, '_>,
) {
    if let Some((first, rules)) = first.and_then(|first| Some((first, claims.get(first)?.rules.clone()?))) {
        let names = Arc::clone(&builder.policy.aliases.names);
        let held = rules.rules.len() + usize::from(rules.fallback.is_some());
        if held.saturating_mul(names.len()) > MAX_PATHS {
            let message = format!(
                "`server-alias` has {} names for {held} paths, but {MAX_PATHS} in all are allowed; it has no effect, \
                 name fewer",
                names.len()
            );
            builder.context.report(builder.object, Reason::TooLarge, message);
        } else {
            for name in names.iter() {
                insert(claims, name, (AliasKind::Same, rules.clone()), first, builder);
            }
        }
    }
    if builder.policy.aliases.redirects_www {
        let named = claims.iter().filter(|(_, claim)| claim.rules.is_some()).map(|(pattern, _)| pattern.clone());
        for pattern in named.collect::<Vec<_>>() {
            let HostPattern::Exact(host) = &pattern else { continue };
            if let (Some(other), Some(rule)) = (counterpart(host), redirect(host, builder)) {
                let other = HostPattern::Exact(other);
                let rules = RulesClaim { rules: vec![rule], ..RulesClaim::default() };
                insert(claims, &other, (AliasKind::Www, rules), &pattern, builder);
            }
        }
    }
}

/// Claims `name` as a further name of the host `of`.
fn insert(
    claims: &mut BTreeMap<HostPattern, HostClaim>,
    name: &HostPattern,
    (kind, rules): (AliasKind, RulesClaim),
    of: &HostPattern,
    builder: &mut Builder<'_, '_>,
) {
    let (has_tls, certificate) = claims.get(of).map_or((false, None), |of| (of.has_tls, of.certificate.clone()));
    let known = claims.entry(name.clone()).or_default();
    if known.rules.is_some() || known.alias.is_some() {
        let key = if kind == AliasKind::Www { "from-to-www-redirect" } else { "server-alias" };
        let message = format!("`{key}` does nothing for `{name}`, which this Ingress serves anyway; remove either");
        builder.context.report(builder.object, Reason::HostPathConflict, message);
        return;
    }
    known.alias = Some(Box::new(AliasClaim { kind, rules, has_tls, certificate }));
}

/// Returns the name with `www.` added or removed.
fn counterpart(host: &Host) -> Option<Host> {
    let name = match host.as_str().strip_prefix("www.") {
        Some(rest) => rest.to_owned(),
        None => format!("www.{host}"),
    };
    // A name that would be too long is left out.
    Host::parse(&name).ok()
}

/// Returns the rule that redirects every request to `host`, with the scheme of the request.
fn redirect(host: &Host, builder: &Builder<'_, '_>) -> Option<Rule> {
    let status = builder.globals.https_redirect.status;
    let location = Template::parse(&format!("$scheme://{host}$request_uri")).ok()?;
    let path = PathMatch::Prefix("/".into());
    let forwarding = builder.policy.forwarding(&path);
    let action = Action::Redirect(Redirect { status, location: location.into() }.into());
    let owner = builder.owner.clone();
    Some(Rule { path, conditions: None, owner, filters: Vec::new(), action, forwarding })
}
