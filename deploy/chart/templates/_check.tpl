{{- /* Fails with all faults of the values that the schema cannot see. */ -}}
{{- define "xdp-ingress.check" -}}
{{- $faults := include "xdp-ingress.unknownValues" . | fromYamlArray -}}
{{- $faults = concat $faults (include "xdp-ingress.contradictions" . | fromYamlArray) -}}
{{- with $faults }}
{{- fail (printf "\n%s\n" (join "\n" .)) }}
{{- end }}
{{- end -}}

{{- /* Contradictions between values, and those of ingress-nginx that would change what is served; a YAML list. */ -}}
{{- define "xdp-ingress.contradictions" -}}
{{- $controller := .Values.controller -}}
{{- range $path, $reason := (.Files.Get "files/ingress-nginx-values.yaml" | fromYaml).refused }}
{{- $value := $.Values }}
{{- range splitList "." $path }}
{{- $value = kindIs "map" $value | ternary (get (kindIs "map" $value | ternary $value dict) .) "" }}
{{- end }}
{{- if $value }}
- {{ printf "`%s`: %s" $path $reason | quote }}
{{- end }}
{{- end }}
{{- if regexMatch "^registry[.]k8s[.]io/|ingress-nginx/" (include "xdp-ingress.image" .) }}
- "`controller.image` or `global.image` names the image of ingress-nginx or its registry; remove it, or name one of xdp-ingress"
{{- end }}
{{- if contains "/wait-shutdown" (toJson $controller.lifecycle) }}
- "`controller.lifecycle` runs `/wait-shutdown` of the image of ingress-nginx; remove it, xdp-ingress drains by itself"
{{- end }}
{{- if and $controller.publishStatusAddress (include "xdp-ingress.publishService" .) }}
- "`controller.publishStatusAddress` and the Service of `controller.publishService` exclude each other; empty the first, or set `controller.publishService.enabled` to false"
{{- end }}
{{- if and $controller.scope.enabled $controller.scope.namespaceSelector }}
- "`controller.scope.namespaceSelector` selects among all namespaces; set it or `controller.scope.enabled`, not both"
{{- end }}
{{- if le (int $controller.terminationGracePeriodSeconds) (int $controller.drainTimeout) }}
- "`controller.drainTimeout` ({{ $controller.drainTimeout }}) must be less than `controller.terminationGracePeriodSeconds` ({{ $controller.terminationGracePeriodSeconds }}), after which a pod is killed"
{{- end }}
{{- if and $controller.configMap (ne $controller.configMap (include "xdp-ingress.settings" .)) }}
- "`controller.configMap` names your own ConfigMap, but `config`, `addHeaders` and `proxySetHeaders` need the chart's; empty one of the two"
{{- end }}
{{- range $key, $name := dict "addHeaders" "add-headers" "proxySetHeaders" "proxy-set-headers" }}
{{- if and (get $controller $key) (hasKey $controller.config $name) }}
- "`controller.{{ $key }}` and `{{ $name }}` in `controller.config` both name the header fields; remove one of the two"
{{- end }}
{{- end }}
{{- range $protocol := list "tcp" "udp" }}
{{- if and (get $.Values $protocol) (get $controller (printf "%sServicesConfigMap" $protocol)) }}
- "`{{ $protocol }}` and `controller.{{ $protocol }}ServicesConfigMap` exclude each other; empty one of the two"
{{- end }}
{{- end }}
{{- with $controller.adminAddress }}
{{- if and $controller.metrics.enabled (not (hasSuffix (printf ":%d" (int $controller.metrics.port)) .)) }}
- "the port of `controller.adminAddress` must be `controller.metrics.port` ({{ $controller.metrics.port }}), which Prometheus scrapes"
{{- end }}
{{- end }}
{{- with $controller.api }}
{{- if and .enabled (not .tlsSecret) }}
- "`controller.api` needs a certificate; name its Secret in `controller.api.tlsSecret`"
{{- end }}
{{- if and .enabled (not .tokenReview) (not .clientCaSecret) }}
- "`controller.api` has no means to authenticate clients; set `tokenReview`, or name a Secret in `clientCaSecret`"
{{- end }}
{{- end }}
{{- if and $controller.metrics.enabled $controller.metrics.serviceMonitor.enabled (not $controller.metrics.service.enabled) }}
- "`controller.metrics.serviceMonitor` selects the Service of the metrics; set `controller.metrics.service.enabled`"
{{- end }}
{{- if and $controller.metrics.serviceMonitor.enabled (not $controller.metrics.enabled) }}
- "`controller.metrics.serviceMonitor` needs metrics that Prometheus can reach; set `controller.metrics.enabled`"
{{- end }}
{{- if and $controller.metrics.podMonitor.enabled (not $controller.metrics.enabled) }}
- "`controller.metrics.podMonitor` needs metrics that Prometheus can reach; set `controller.metrics.enabled`"
{{- end }}
{{- if and $controller.metrics.podMonitor.enabled $controller.metrics.serviceMonitor.enabled }}
- "`controller.metrics.podMonitor` and `controller.metrics.serviceMonitor` lead to the same metrics; set only one"
{{- end }}
{{- with $controller.service }}
{{- $type := .internal.type | default .type }}
{{- if and .enabled .internal.enabled (eq $type "LoadBalancer") (not .internal.annotations) (not .internal.loadBalancerClass) }}
- "`controller.service.internal` has neither `annotations` nor `loadBalancerClass`; its load balancer would be public"
{{- end }}
{{- if and .enabled (not .enableHttp) (not .enableHttps) (not $.Values.tcp) (not $.Values.udp) }}
- "`controller.service` has no port; set `enableHttp` or `enableHttps`, or `enabled` to false"
{{- end }}
{{- end }}
{{- end -}}
