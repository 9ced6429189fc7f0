use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::peers::Ports;
use ingress_lab::api_server::ApiServer;

#[test]
fn certificates_go_to_hosts_as_planned() {
    for (tls, expect) in [
        (Tls::None, [None, None, None, None]),
        (Tls::OneInTen, [Some(0), None, Some(1), Some(0)]),
        (Tls::Each, [Some(0), Some(1), Some(10), Some(40)]),
    ] {
        let plan = Plan { hosts: 41, tls };
        assert_eq!([0, 1, 10, 40].map(|host| plan.certificate(host)), expect, "{tls:?}");
        let used = (0..plan.hosts).filter_map(|host| plan.certificate(host)).max();
        assert_eq!(used.map_or(0, |last| last + 1), plan.certificates(), "{tls:?}");
    }
}

#[test]
fn an_api_server_accepts_and_removes_every_object() {
    let plan = Plan { hosts: 1, tls: Tls::Each };
    let api = ApiServer::start().expect("started");
    let group = || objects::group(Way::XdpIngress, plan, 0, Pod::A.address(), 80);
    api.apply([objects::class()]).expect("a class");
    api.apply(group()).expect("a host");
    api.remove(group()).expect("the same objects");
}

#[test]
fn a_manifest_holds_its_objects_unchanged() {
    let group = objects::group(Way::XdpIngressFiles, Plan { hosts: 1, tls: Tls::Each }, 7, Pod::B.address(), 8080);
    let text = objects::manifest(&group);
    let read: Vec<Value> = text.split_terminator("\n---\n").map(|one| serde_json::from_str(one).expect(one)).collect();
    assert_eq!(read, group);
    let kinds: BTreeMap<_, _> = group.iter().map(|object| (object["kind"].as_str(), object)).collect();
    assert_eq!(kinds[&Some("Ingress")]["spec"]["rules"][0]["host"], name(7));
    assert_eq!(kinds[&Some("EndpointSlice")]["endpoints"][0]["addresses"][0], "127.0.0.2");
}

#[test]
fn a_route_names_its_gateway_which_has_the_ports_of_the_peer() {
    let (way, ports) = (Way::XdpIngressGatewayFiles, Ports { http: 8080, https: 8443 });
    for (tls, expect) in [(Tls::None, vec![8080]), (Tls::OneInTen, vec![8080, 8443])] {
        let plan = Plan { hosts: 20, tls };
        let [class, gateway] = objects::shared(way, plan, ports).try_into().expect("two objects");
        let found: Vec<_> = gateway["spec"]["listeners"].as_array().expect("a list").iter().collect();
        assert_eq!(found.iter().map(|listener| &listener["port"]).collect::<Vec<_>>(), expect);
        assert_eq!(gateway["spec"]["gatewayClassName"], class["metadata"]["name"]);
        let [_, _, route] = objects::group(way, plan, 7, Pod::A.address(), 80);
        assert_eq!(route["spec"]["hostnames"][0], name(7));
        assert_eq!(route["spec"]["parentRefs"][0]["name"], gateway["metadata"]["name"]);
    }
}
