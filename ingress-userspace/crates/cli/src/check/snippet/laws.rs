//! Laws of the conversion: the annotations have the effect that nginx gives the snippet, or the reason is named.

use super::{tests::*, *};

/// Converts snippets, and returns what comes out, one line each and without blanks at its start.
fn converted(server: &str, location: &str, facts: &Facts) -> String {
    let conversion = convert([(Place::Location, location), (Place::Server, server)], facts);
    shown(&conversion).lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

fn of_server(text: &str) -> String {
    converted(text, "", &facts())
}

fn of_location(text: &str) -> String {
    converted("", text, &facts())
}

#[track_caller]
fn assert_lines(found: &str, expect: &[&str]) {
    for line in expect {
        assert!(found.contains(line), "`{line}` is not in:\n{found}");
    }
}

#[test]
fn the_first_rule_for_an_address_decides() {
    for (text, expect) in [
        ("allow all; deny all;", "- deny all: nginx refuses no client by it\n"),
        ("deny all; allow 10.0.0.0/8;", "+ redirect-rules: -> 403\n"),
        ("allow 10.0.0.0/8; deny all;", "+ allowlist-source-range: 10.0.0.0/8\n"),
        ("allow 10.0.0.5; deny 10.0.0.0/30; deny 10.0.0.4/30;", "10.0.0.4, 10.0.0.6/31"),
        ("deny 10.0.0.1; allow 10.0.0.0/31; deny all;", "+ allowlist-source-range: 10.0.0.0\n"),
    ] {
        let found = of_location(text);
        assert!(found.contains(expect) && !found.contains('!'), "{text}:\n{found}");
    }
    assert!(!of_location("allow all; deny all;").contains("+ "));
}

#[test]
fn with_satisfy_any_a_password_opens_what_networks_refuse() {
    let annotations = BTreeMap::from([("auth-secret".to_owned(), "users".to_owned())]);
    let facts = Facts { annotations, ..facts() };
    for (text, expect) in [
        ("satisfy any; allow 10.0.0.0/8; deny all;", "+ allowlist-source-range: 10.0.0.0/8\n+ satisfy: any\n"),
        ("satisfy any; deny all;", "- deny all: clients must authenticate\n"),
        ("satisfy any; deny 192.0.2.0/24;", "- deny 192.0.2.0/24: clients must authenticate\n"),
        ("satisfy any; allow 10.0.0.0/8;", "+ allowlist-source-range: 10.0.0.0/8\n+ satisfy: any\n"),
        ("satisfy any; allow all;", "! 1 allow all: with `satisfy any`, all clients pass without a password\n"),
    ] {
        assert_lines(&converted("", text, &facts), &[expect]);
    }
    assert!(!converted("", "satisfy any; deny all;", &facts).contains("satisfy: any"));
}

#[test]
fn a_list_of_an_annotation_comes_before_that_of_the_snippet() {
    let settings = BTreeMap::from([("whitelist-source-range".to_owned(), "10.0.0.0/8".to_owned())]);
    let facts = Facts { settings, ..facts() };
    let found = converted("", "allow 192.0.2.0/24; deny all;", &facts);
    assert!(!found.contains("+ allowlist"), "{found}");
    assert_lines(&found, &["- allow 192.0.2.0/24: ingress-nginx writes the list"]);
}

#[test]
fn locations_are_tried_in_the_order_of_nginx() {
    for (text, expect) in [
        // An exact path goes before all others.
        (
            "location /x { return 404; } location = /x/login { return 301 /login; }",
            "+ redirect-rules: path = /x/login -> 301 /login\npath ~ ^/x -> 404\n",
        ),
        // Of prefixes, the longest.
        ("location /x { return 404; } location /x/y { deny all; }", "+ deny-paths: /x/y\n/x=404\n"),
        // Expressions go before prefixes without `^~`, as they stand.
        (
            r"location /x { return 404; } location ~ \.php$ { return 410; } location ~ ^/x/a { deny all; }",
            "+ deny-paths: ~ \\.php$=410\n~ ^/x/a\n/x=404\n",
        ),
        (r"location ~ \.php$ { return 410; } location ^~ /x { return 404; }", "+ deny-paths: /x=404\n~ \\.php$=410\n"),
        // Disjoint ones need no order.
        (
            "location = /old { return 301 /new; } location /metrics { deny all; }",
            "+ deny-paths: /metrics\n+ redirect-rules: path = /old -> 301 /new\n",
        ),
    ] {
        let found = of_server(text);
        assert!(found.contains(expect) && !found.contains("! "), "{text}:\n{found}");
    }
}

#[test]
fn locations_without_an_order_are_named() {
    for (text, expect) in [
        (
            r"location ^~ /x { return 404; } location /x/y { deny all; } location ~ \.php$ { return 410; }",
            "within it, `location /x/y` lets regular expressions decide",
        ),
        ("location /x { return 404; } location /x { deny all; }", "two locations for the same path"),
        ("location /a%20b { deny all; }", "escapes in requests"),
        ("location /é { deny all; }", "escapes in requests"),
    ] {
        let found = of_server(text);
        assert!(found.contains(expect) && found.contains("! "), "{text}:\n{found}");
    }
}

#[test]
fn paths_of_ingresses_take_part_in_the_choice() {
    let path = |path: &str, is_exact, is_own| HostPath { path: path.into(), is_exact, is_own };
    let paths = vec![path("/app", false, true), path("/x/open", false, false), path("/run.php", true, false)];
    let facts = Facts { paths, ..facts() };
    for (text, expect) in [
        (
            "location /x { deny all; }",
            "! 1 location /x: nginx takes path `/x/open` of an Ingress, which lies within it\n",
        ),
        (r"location ~ \.php$ { deny all; }", "nginx takes exactly `/run.php`, a path of an Ingress, before it\n"),
        ("location = /x/open { deny all; }", "+ deny-paths: = /x/open\n"),
        ("location ~ ^/x/open/y { deny all; }", "+ deny-paths: ~ ^/x/open/y\n"),
        (
            "location = /old { return 301 /new; }",
            "! 1 location = /old: no path of the Ingress leads to `/old`; add one\n",
        ),
        ("location = /app/old { return 301 /new; }", "+ redirect-rules: path = /app/old -> 301 /new\n"),
    ] {
        assert_lines(&converted(text, "", &facts), &[expect]);
    }
    let facts = Facts { has_expressions: true, ..facts };
    for (text, expect) in [
        ("location /metrics { deny all; }", "! 1 location /metrics: nginx takes the paths of the host before it"),
        ("location ~ ^/metrics { deny all; }", "+ deny-paths: ~ ^/metrics\n"),
        ("location = /metrics { deny all; }", "+ deny-paths: = /metrics\n"),
    ] {
        assert_lines(&converted(text, "", &facts), &[expect]);
    }
}

#[test]
fn rules_of_the_server_run_before_its_locations() {
    let text = "location /metrics { deny all; } if ($host = old.example.com) { return 301 https://new.example.com; }";
    let expect = "+ redirect-rules: host = old.example.com -> 301 https://new.example.com\npath ~ ^/metrics -> 403\n";
    assert_lines(&of_server(text), &[expect]);
}

#[test]
fn a_location_with_a_list_of_its_own_takes_none_of_the_server() {
    for (server, location, expect, missing) in [
        ("add_header X-S 1 always;", "add_header X-L 1 always;", "+ response-headers: +X-L: 1\n", "X-S: 1"),
        ("add_header X-S 1 always;", "", "+ response-headers: +X-S: 1\n", "! "),
        ("more_set_headers 'X-S: 1';", "more_set_headers 'X-L: 1';", "X-S: 1\nX-L: 1\n", "! "),
        ("proxy_set_header X-S 1;", "", "- proxy_set_header X-S 1: ingress-nginx writes one", "+ "),
        ("proxy_hide_header X-S;", "proxy_hide_header X-L;", "+ response-headers: -X-L\n", "-X-S"),
        ("deny 192.0.2.0/24;", "allow 10.0.0.0/8; deny all;", "+ allowlist-source-range: 10.0.0.0/8\n", "+ denylist"),
        (
            "deny 192.0.2.0/24;",
            "allow 10.0.0.0/8;",
            "- allow 10.0.0.0/8: nginx refuses no client by it\n",
            "+ denylist",
        ),
        ("deny 192.0.2.0/24;", "", "+ denylist-source-range: 192.0.2.0/24\n", "! "),
        ("client_max_body_size 10g; proxy_read_timeout 1h;", "", "- proxy_read_timeout 1h: ", "+ "),
        ("expires 1h;", "expires 30d;", "Cache-Control: max-age=2592000\n", "max-age=3600"),
    ] {
        let found = converted(server, location, &facts());
        assert!(found.contains(expect) && !found.contains(missing), "{server} | {location}:\n{found}");
    }
    let annotations = BTreeMap::from([("auth-url".to_owned(), "http://a".to_owned())]);
    let found = converted("add_header X-S 1;", "", &Facts { annotations, ..facts() });
    assert_lines(&found, &["- add_header X-S 1: nginx takes that of the annotation `auth-url` instead\n"]);
}

#[test]
fn expansion_of_variables_is_bounded() {
    let doubling = "set $a ab;\n".to_owned() + &"set $a \"$a$a\";\n".repeat(64);
    assert_lines(&of_location(&doubling), &["! 15 set $a $a$a: its variables expand to more than 16384 bytes\n"]);
    let many = format!("set $a {};\n{}", "x".repeat(16_000), "set $b $a;\n".repeat(4_000));
    assert_lines(&of_location(&many), &["the variables of the Ingress expand to more than 4194304 bytes\n"]);
    let steps = "if ($host = a) { set $a \"${a}1\"; }\n".repeat(2_000);
    assert_lines(&of_location(&steps), &["`$a` depends on more than 64 conditions\n"]);
    let level = |from: &str, to: &str| format!("if (${from} = xx) {{ set ${to} \"${{{to}}}x\"; }}\n").repeat(2);
    let chain: String = "if ($host = a) { set $v0 \"${v0}x\"; }\n".repeat(2)
        + &(0..40).map(|n| level(&format!("v{n}"), &format!("v{}", n + 1))).collect::<String>();
    assert_lines(&of_location(&chain), &["! "]);
    let rules: String = (0..20_000).map(|n| format!("if ($uri ~ ^/{n}) {{ return 403; }}\n")).collect();
    assert_lines(&of_location(&rules), &["! 65 return 403: there are more than 64 rules\n"]);
}

#[test]
fn expressions_that_pcre_reads_otherwise_are_named() {
    for (text, expect) in [
        (r"if ($uri ~ (.)\1) { return 403; }", "back reference"),
        (r"if ($uri ~ ^/a++) { return 403; }", "PCRE reads `++`"),
        (r"if ($uri !~ ^/(?!a)) { return 403; }", "look-around"),
        (r"rewrite ^/(?=a) /b permanent;", "look-around"),
        (r"if ($uri ~ [a&&b]) { return 403; }", "PCRE reads `&&`"),
    ] {
        let found = of_location(text);
        assert!(found.contains(expect) && !found.contains("+ "), "{text}:\n{found}");
    }
    for (text, expect) in [
        (r"if ($uri ~* ^/\d+$) { return 403; }", "+ redirect-rules: path ~* ^/[0-9]+$ -> 403\n"),
        (
            r"if ($uri ~ ^/a/(?!b)(.*)$) { return 301 /c/$1; }",
            "+ redirect-rules: path !~ ^/a/(?:b) and path ~ ^/a/(.*)$ -> 301 /c/$1\n",
        ),
    ] {
        assert_lines(&of_location(text), &[expect]);
    }
}

#[test]
fn an_exemption_does_not_weaken_the_rest_of_an_expression() {
    let found = of_server(r"location ~ /\.(?!well-known).* { deny all; }");
    let rules = found.trim().strip_prefix("+ redirect-rules: ").expect("rules");
    let expect = r"path !~ ^(?:[^/]|/\.well-known|/[^./]|/$)*$ and path ~ /\..* -> 403";
    assert_eq!(rules, expect);
    // The `/` behind the exemption may begin a path to refuse, such as `/.well-known/.git/config`.
    let found = of_server(r"location ~* /\.(?!well-known\/) { deny all; }");
    let expect = r"path !~* ^(?:[^/]|(?:/\.well-known)*/(?:[^./]|$))*$ and path ~* /\. -> 403";
    assert_lines(&found, &[expect]);
}

#[test]
fn answers_are_those_of_nginx() {
    for (text, expect) in [
        ("rewrite ^/a$ /b redirect;", "+ redirect-rules: path ~ ^/a$ -> 302 /b$is_args$args\n"),
        ("rewrite ^/a$ /b? permanent;", "+ redirect-rules: path ~ ^/a$ -> 301 /b\n"),
        (
            "rewrite ^/a$ https://b.example/ last;",
            "+ redirect-rules: path ~ ^/a$ -> 302 https://b.example/$is_args$args\n",
        ),
        ("rewrite ^/a$ /b permanently;", "! 1 rewrite ^/a$ /b permanently: `permanently` is no flag of `rewrite`\n"),
        ("return 301;", "! 1 return 301: "),
        ("return 403 'no';", "+ redirect-rules: -> 403\n"),
        ("if ($request_method = post) { return 405; }", "+ redirect-rules: method = post -> 405\n"),
        ("if ($http_host = 'a.example:8080') { return 403; }", "the port is no part of the host"),
        ("if ($http_host != a.example) { return 403; }", "nginx also refuses other ports"),
        (
            "if ($http_host != a.example) { return 301 https://a.example; }",
            "+ redirect-rules: host != a.example -> 301",
        ),
        ("if ($uri ~ '^/(.*)') { set $x $1; }", "! "),
        ("set $x $1; if ($uri ~ ^/b) { return 301 /$x; }", "`$x` holds a group of an earlier expression"),
    ] {
        assert_lines(&of_location(text), &[expect]);
    }
    let found = of_server("location = /a,b { deny all; } location /c=404 { deny all; }");
    assert_lines(&found, &["+ redirect-rules: path = /a,b -> 403\npath ~ ^/c=404 -> 403\n"]);
    let found = of_server("location /i { internal; return 301 /x; }");
    assert_lines(&found, &["+ deny-paths: /i=404\n"]);
}

#[test]
fn an_internal_location_answers_404_whatever_it_returns() {
    for text in [
        "internal;",
        "return 301 /x; internal;",
        "if ($host = a) { return 301 /x; } internal;",
        "rewrite ^/old/(.*)$ /$1 break; internal;",
        "rewrite ^/old/(.*)$ /new/$1 last; internal; set $a b;",
    ] {
        let found = of_location(text);
        assert_eq!(found.matches("->").count(), 1, "{text}:\n{found}");
        assert_lines(&found, &["+ redirect-rules: -> 404\n"]);
    }
    // Directives of the server run before.
    let found = converted("if ($uri = /a) { return 301 /x; }", "return 302 /y; internal;", &facts());
    assert_lines(&found, &["+ redirect-rules: path = /a -> 301 /x\n-> 404\n"]);
}

#[test]
fn networks_of_a_location_refuse_all_others() {
    for (text, expect) in [
        (
            "location /admin { allow 10.0.0.0/8; allow 192.0.2.7; deny all; }",
            "+ redirect-rules: path ~ ^/admin and client != 10.0.0.0/8 and client != 192.0.2.7 -> 403\npath ~ ^/admin -> 404\n",
        ),
        (
            "location = /x { deny 192.0.2.0/24; }",
            "+ redirect-rules: path = /x and client = 192.0.2.0/24 -> 403\npath = /x -> 404\n",
        ),
        ("location /s { stub_status; allow 127.0.0.1; deny all; }", "+ deny-paths: /s\n"),
        (
            "location /s { stub_status; allow 10.0.0.0/8; deny all; }",
            "! 1 location /s: there is no status page of nginx",
        ),
    ] {
        assert_lines(&of_server(text), &[expect]);
    }
}

#[test]
fn a_path_is_rewritten_only_where_nginx_ends_there() {
    for (text, expect) in [
        ("rewrite ^/api/(.*)$ /$1 break;", "+ redirect-rules: path ~ ^/api/(.*)$ -> rewrite /$1$is_args$args\n"),
        ("rewrite ^/a/(.*) /b/$1? break;", "+ redirect-rules: path ~ ^/a/(.*) -> rewrite /b/$1\n"),
        ("rewrite ^/v1/(.*) /api/$1 last;", "+ redirect-rules: path ~ ^/v1/(.*) -> rewrite /api/$1$is_args$args\n"),
        // The result matches again, which ends in 500.
        ("rewrite ^/v1/(.*) /v1/api/$1 last;", "! 1 rewrite ^/v1/(.*) /v1/api/$1 last: it changes the path"),
        ("rewrite ^(.*)$ /x$1 last;", "! 1 rewrite ^(.*)$ /x$1 last: it changes the path"),
        ("rewrite ^/a /b last; if ($uri = /b) { return 403; }", "! 1 return 403: nginx runs it for the rewritten path"),
        ("if ($uri = /b) { return 403; } rewrite ^/a /b last;", "! 1 rewrite ^/a /b last: it changes the path"),
        ("rewrite ^/a /$host break;", "! 1 rewrite ^/a /$host break: "),
    ] {
        assert_lines(&of_location(text), &[expect]);
    }
    assert_lines(&of_server("rewrite ^/a /b break;"), &["! 1 rewrite ^/a /b break: it changes the path"]);
    let paths = ["/", "/b"].map(|path| HostPath { path: path.into(), is_exact: false, is_own: path == "/" }).to_vec();
    let found = converted("", "rewrite ^/v1/(.*) /api/$1 last;", &Facts { paths, ..facts() });
    assert_lines(&found, &["! 1 rewrite ^/v1/(.*) /api/$1 last: it changes the path"]);
}

#[test]
fn texts_of_answers_are_written_out() {
    for (text, expect) in [
        ("return 200 'a \"b\"\\n';", "+ redirect-rules: -> 200 \"a \\\"b\\\"\\n\"\n"),
        ("return 204;", "+ redirect-rules: -> 204\n"),
        ("return 200 $uri;", "! 1 return 200 $uri: its value has variables\n"),
    ] {
        assert_lines(&of_location(text), &[expect]);
    }
}

#[test]
fn the_name_of_the_server_is_that_of_the_rule() {
    let of = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        converted("", "more_set_input_headers 'X-Name: $server_name';", &Facts { hosts, ..facts() })
    };
    for (hosts, expect) in [
        (&["a.example"][..], "+ request-headers: X-Name: a.example\n"),
        (&["a.example", "b.example"], "+ request-headers: X-Name: $host\n"),
        (&["*.example"], "! 1 more_set_input_headers"),
    ] {
        assert_lines(&of(hosts), &[expect]);
    }
}

#[test]
fn a_rewritten_path_escapes_no_refusal_of_everything() {
    for (text, expect) in [
        ("rewrite ^/old/(.*)$ /$1 break; deny all;", "+ redirect-rules: path ~ ^/old/(.*)$ -> 403\n-> 403\n"),
        ("rewrite ^/v1/(.*) /api/$1 last; deny all;", "+ redirect-rules: path ~ ^/v1/(.*) -> 403\n-> 403\n"),
        // nginx answers these before it looks at networks.
        (
            "if ($host = a) { return 301 /x; } rewrite ^/b /c break; deny all;",
            "+ redirect-rules: host = a -> 301 /x\npath ~ ^/b -> 403\n-> 403\n",
        ),
        (
            "if ($uri = /a) { return 200 'x -> rewrite y'; } deny all;",
            "+ redirect-rules: path = /a -> 200 \"x -> rewrite y\"\n-> 403\n",
        ),
        ("rewrite '^/-> rewrite' /c break; deny all;", "+ redirect-rules: path ~ \"^/-> rewrite\" -> 403\n-> 403\n"),
    ] {
        let found = of_location(text);
        assert!(found.contains(expect) && !found.contains("-> rewrite /"), "{text}:\n{found}");
    }
}

#[test]
fn an_exemption_that_holds_the_next_occurrence_is_named() {
    for text in [
        r"location ~* /\.(?!well-known\/acme) { deny all; }",
        r"location ~ /\.(?!a/\.b) { deny all; }",
        r"location ~ \.(?!a\.b) { deny all; }",
        r"location ~ '^/a|/b(?!c)' { deny all; }",
    ] {
        let found = of_server(text);
        assert!(found.contains("look-around") && !found.contains("+ "), "{text}:\n{found}");
    }
}

#[test]
fn denied_networks_of_the_ingress_or_of_all_stay_denied() {
    let list = |networks: &str| BTreeMap::from([("denylist-source-range".to_owned(), networks.to_owned())]);
    let none = BTreeMap::new;
    for (annotations, settings, expect) in [
        (none(), none(), "+ denylist-source-range: 192.0.2.0/24\n"),
        (none(), list("198.51.100.7"), "+ denylist-source-range: 198.51.100.7, 192.0.2.0/24\n"),
        (list("203.0.113.7, "), list("198.51.100.7"), "+ denylist-source-range: 203.0.113.7, 192.0.2.0/24\n"),
    ] {
        let facts = Facts { annotations, settings, ..facts() };
        assert_lines(&converted("", "deny 192.0.2.0/24;", &facts), &[expect]);
    }
}

#[test]
fn a_field_names_the_client_only_for_networks_of_the_snippet() {
    let trust = "real_ip_header CF-Connecting-IP; set_real_ip_from 192.0.2.0/24;";
    let found = of_server(trust);
    assert_lines(&found, &["+ setting enable-real-ip: true\n", "+ setting forwarded-for-header: CF-Connecting-IP\n"]);
    assert!(!found.contains("use-forwarded-headers"), "{found}");
    for field in ["CF-Connecting-IP", "proxy_protocol"] {
        let found = of_server(&format!("real_ip_header {field};"));
        assert!(found.contains("without `set_real_ip_from`, nginx trusts no peer") && !found.contains("+ "), "{found}");
    }
    let found = converted("set_real_ip_from 192.0.2.0/24;", "real_ip_header X-Real-IP;", &facts());
    assert_lines(&found, &["+ setting enable-real-ip: true\n"]);
}

#[test]
fn sizes_of_heads_are_within_the_bounds_of_the_setting() {
    let directive = |value: &str| of_server(&format!("large_client_header_buffers {value};"));
    for value in ["4 8k", "4 64K", "2 8192", "1 8k"] {
        assert_lines(&directive(value), &[&format!("+ setting large-client-header-buffers: {value}\n")]);
    }
    for value in ["8 64k", "4 1m", "1 4k", "4 x", "4 99999999999999999999", "9999999999999999 9999k", "+4 8k"] {
        let found = directive(value);
        assert!(found.contains("must be from 8k to 256k") && !found.contains("+ setting"), "{value}:\n{found}");
    }
}

#[test]
fn an_exemption_from_authorization_is_about_the_request_of_the_client() {
    for (text, expect) in [
        ("if ($request_uri ~ ^/healthz) { return 200; }", "+ auth-skip-rules: uri ~ ^/healthz\n"),
        ("if ($request_method = OPTIONS) { return 204; }", "+ auth-skip-rules: method = OPTIONS\n"),
        (
            "if ($request_uri = /a) { return 200; } if ($request_method = HEAD) { return 200; }",
            "+ auth-skip-rules: uri = /a\nmethod = HEAD\n",
        ),
        // Clients never get a field of the response to nginx.
        (
            "if ($request_method = OPTIONS) { add_header Access-Control-Allow-Origin *; return 204; }",
            "+ auth-skip-rules: method = OPTIONS\n",
        ),
        // An earlier directive decides first.
        (
            "if ($request_uri ~ ^/api/admin) { return 403; } if ($request_uri ~ ^/api) { return 200; }",
            "! 1 return 200: a directive before it is not converted",
        ),
        (
            "if ($request_uri ~ ^/api/admin) { break; } if ($request_uri ~ ^/api) { return 200; }",
            "! 1 return 200: a directive before it is not converted",
        ),
        ("if ($uri ~ ^/healthz) { return 200; }", "! 1 return 200: `$uri` is the path of the request to `auth-url`"),
        ("return 200;", "! 1 return 200: it admits all requests"),
        ("if ($request_uri ~ ^/admin) { return 403; }", "! 1 return 403: it answers in place of `auth-url`"),
        ("if ($http_x_internal = 1) { return 200; }", "! 1 return 200: `header:x-internal = 1` has a condition on"),
        ("if ($remote_addr = 10.0.0.1) { return 200; }", "! 1 return 200: `client = 10.0.0.1` has a condition on"),
        ("if ($arg_public) { return 200; }", "! 1 return 200: "),
    ] {
        let found = shown(&convert([(Place::Auth, text)], &facts()));
        let found: String = found.lines().map(|line| format!("{}\n", line.trim_start())).collect();
        assert_lines(&found, &[expect]);
        assert_eq!(expect.starts_with('!'), !found.contains("+ "), "{text}:\n{found}");
    }
}

#[test]
fn properties_of_certificates_and_the_time_stand_in_fields() {
    for (text, expect) in [
        ("proxy_set_header X-DN $ssl_client_s_dn;", "+ request-headers: X-DN: $ssl_client_s_dn\n"),
        (
            "proxy_set_header X-By \"$ssl_client_verify ${ssl_client_i_dn}\";",
            "X-By: $ssl_client_verify $ssl_client_i_dn\n",
        ),
        ("proxy_set_header X-Request-Start \"t=${msec}\";", "+ request-headers: X-Request-Start: t=$msec\n"),
        ("proxy_set_header X-Serial $ssl_client_serial;", "! 1 proxy_set_header X-Serial $ssl_client_serial: "),
    ] {
        assert_lines(&of_location(text), &[expect]);
    }
}
