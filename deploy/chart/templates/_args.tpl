{{- /* Arguments after `run`, as a YAML list. Those that equal the program's defaults are left out. An argument of
controller.extraArgs replaces the one of the same name here. */ -}}
{{- define "xdp-ingress.args" -}}
{{- $extra := .Values.controller.extraArgs -}}
{{- range include "xdp-ingress.ownArgs" . | fromYamlArray }}
{{- if not (hasKey $extra (regexFind "[a-z0-9][a-z0-9-]*" .)) }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- /* Switches that take no value: false leaves them out. */ -}}
{{- $switches := list "ingress-class-by-name" "watch-ingress-without-class" "snapshot-private-keys" "allow-svc-external-name" "disable-svc-external-name" "disable-catch-all" "report-node-internal-ip-address" "disable-leader-election" "gateway-services" "gateway-address-forwarding" "bpf-log" -}}
{{- range $name, $value := $extra }}
{{- range kindIs "slice" $value | ternary $value (list $value) }}
{{- $text := include "xdp-ingress.text" . }}
{{- if has $text (list "" "true") }}
- {{ printf "--%s" $name | quote }}
{{- else if not (and (eq $text "false") (has $name $switches)) }}
- {{ printf "--%s=%s" $name $text | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "xdp-ingress.ownArgs" -}}
{{- $controller := .Values.controller -}}
- --log-format={{ $controller.logFormat }}
- --bpffs=/bpf/xdp-ingress
- --snapshot-file=/run/xdp-ingress/snapshot.json
- --probe-socket=/run/xdp-ingress-pod/probe.sock
- --drain-timeout={{ $controller.drainTimeout }}
{{- if $controller.disableLeaderElection }}
- --disable-leader-election
{{- else if $controller.updateStatus }}
- --election-id={{ $controller.electionID | default "xdp-ingress-leader" }}
{{- end }}
{{- if not $controller.updateStatus }}
- --update-status=false
{{- end }}
{{- with $controller.electionTTL }}
- --election-ttl={{ . }}
{{- end }}
{{- with $controller.ingressClass | default (include "xdp-ingress.className" .) }}
{{- if ne . "xdp" }}
- --ingress-class={{ . }}
{{- end }}
{{- end }}
{{- with include "xdp-ingress.controllerClass" . }}
{{- if ne . "xdp-ingress.io/controller" }}
- --controller-class={{ . }}
{{- end }}
{{- end }}
{{- if $controller.ingressClassByName }}
- --ingress-class-by-name
{{- end }}
{{- with include "xdp-ingress.scope" . }}
- --watch-namespace={{ . }}
{{- end }}
{{- with $controller.scope.namespaceSelector }}
- {{ printf "--watch-namespace-selector=%s" . | quote }}
{{- end }}
{{- if $controller.watchIngressWithoutClass }}
- --watch-ingress-without-class
{{- end }}
{{- with include "xdp-ingress.settings" . }}
- --configmap={{ . }}
{{- end }}
{{- with $controller.defaultSslCertificate }}
- --default-ssl-certificate={{ . }}
{{- end }}
{{- with $controller.defaultBackendService }}
- --default-backend-service={{ . }}
{{- end }}
{{- with include "xdp-ingress.tcp" . }}
- --tcp-services-configmap={{ . }}
{{- end }}
{{- with include "xdp-ingress.udp" . }}
- --udp-services-configmap={{ . }}
{{- end }}
{{- with include "xdp-ingress.publishService" . }}
- --publish-service={{ . }}
{{- end }}
{{- with $controller.publishStatusAddress }}
- --publish-status-address={{ join "," . }}
{{- end }}
{{- if $controller.reportNodeInternalIp }}
- --report-node-internal-ip-address
{{- end }}
{{- if ne $controller.steer "auto" }}
- --steer={{ $controller.steer }}
{{- end }}
{{- if ne $controller.xdpMode "auto" }}
- --xdp-mode={{ $controller.xdpMode }}
{{- end }}
{{- range $controller.interfaces }}
- --interface={{ . }}
{{- end }}
{{- range $scheme, $usual := dict "http" 80 "https" 443 }}
{{- $port := get $controller.containerPort $scheme | int }}
{{- if ne $port $usual }}
- --{{ $scheme }}-port={{ $port }}
{{- end }}
{{- end }}
{{- if $controller.http3.enabled }}
- --http3=on
{{- with int $controller.http3.advertisePort }}
- --http3-advertise-port={{ . }}
{{- end }}
{{- end }}
{{- if $controller.workers }}
- --workers={{ $controller.workers }}
{{- end }}
{{- with include "xdp-ingress.adminAddress" . }}
{{- if ne . "127.0.0.1:9110" }}
- {{ printf "--admin-addr=%s" . | quote }}
{{- end }}
{{- end }}
{{- with $controller.api }}
{{- if .enabled }}
- {{ printf "--api-addr=%s:%d" .address (int .port) | quote }}
- --api-tls-cert-file=/etc/xdp-ingress/api-tls/tls.crt
- --api-tls-key-file=/etc/xdp-ingress/api-tls/tls.key
{{- if .tokenReview }}
- --api-token-review
{{- end }}
{{- if .clientCaSecret }}
- --api-client-ca-file=/etc/xdp-ingress/api-client-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.gatewayAPI.enabled .Values.gatewayAPI.services }}
- --gateway-services
{{- end }}
{{- if not $controller.dashboard.enabled }}
- --dashboard=false
{{- end }}
{{- if ne $controller.log "info" }}
- {{ printf "--log=%s" $controller.log | quote }}
{{- end }}
{{- end -}}
