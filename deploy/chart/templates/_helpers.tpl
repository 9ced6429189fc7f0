{{- define "xdp-ingress.fullname" -}}
{{- .Values.fullnameOverride | default "xdp-ingress" | trunc 42 | trimSuffix "-" -}}
{{- end -}}

{{- define "xdp-ingress.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "xdp-ingress.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "xdp-ingress.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "xdp-ingress.selector" -}}
app.kubernetes.io/name: xdp-ingress
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "xdp-ingress.labels" -}}
{{- include "xdp-ingress.labelsWith" (dict "root" . "own" dict) -}}
{{- end -}}

{{- /* The labels of an object, and its `own` ones. Those of selectors cannot be replaced. */ -}}
{{- define "xdp-ingress.labelsWith" -}}
{{- $chart := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- merge dict (include "xdp-ingress.selector" .root | fromYaml) .own .root.Values.commonLabels $chart | toYaml -}}
{{- end -}}

{{- /* The labels of the pods, which do not change with the chart's version. */ -}}
{{- define "xdp-ingress.podLabels" -}}
{{- merge dict (include "xdp-ingress.selector" . | fromYaml) .Values.controller.podLabels .Values.commonLabels | toYaml -}}
{{- end -}}

{{- define "xdp-ingress.image" -}}
{{- $image := .Values.controller.image -}}
{{- $registry := $image.registry | default .Values.global.image.registry -}}
{{- $name := $image.repository | default (printf "%s/%s" $registry $image.image) -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* A scalar as text. Whole numbers of YAML are floats here, which would become 1.048576e+06. */ -}}
{{- define "xdp-ingress.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (float64 (int64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{- /* `data` of a ConfigMap, from the map `data`; values may be templates. */ -}}
{{- define "xdp-ingress.data" -}}
{{- $root := .root -}}
{{- range $key, $value := .data }}
{{ $key | quote }}: {{ tpl (include "xdp-ingress.text" $value) $root | quote }}
{{- end }}
{{- end -}}

{{- /* === class === */ -}}

{{- define "xdp-ingress.className" -}}
{{- $name := .Values.controller.ingressClassResource.name -}}
{{- if and (eq .Values.compat "ingress-nginx") (eq $name "xdp") }}nginx{{ else }}{{ $name }}{{ end -}}
{{- end -}}

{{- define "xdp-ingress.controllerClass" -}}
{{- $name := .Values.controller.ingressClassResource.controllerValue -}}
{{- if and (eq .Values.compat "ingress-nginx") (eq $name "xdp-ingress.io/controller") -}}
k8s.io/ingress-nginx
{{- else -}}
{{ $name }}
{{- end -}}
{{- end -}}

{{- /* The watched namespace; empty for all. */ -}}
{{- define "xdp-ingress.scope" -}}
{{- with .Values.controller.scope -}}
{{- if .enabled }}{{ .namespace | default (include "xdp-ingress.namespace" $) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* === ConfigMaps, as NAMESPACE/NAME; empty without one === */ -}}

{{- define "xdp-ingress.configNamespace" -}}
{{- .Values.controller.configMapNamespace | default (include "xdp-ingress.namespace" .) -}}
{{- end -}}

{{- define "xdp-ingress.settings" -}}
{{- $controller := .Values.controller -}}
{{- if or $controller.config $controller.addHeaders $controller.proxySetHeaders -}}
{{ include "xdp-ingress.configNamespace" . }}/{{ include "xdp-ingress.fullname" . }}-settings
{{- else -}}
{{ $controller.configMap }}
{{- end -}}
{{- end -}}

{{- define "xdp-ingress.tcp" -}}
{{- if .Values.tcp -}}
{{ .Values.controller.tcp.configMapNamespace | default (include "xdp-ingress.namespace" .) }}/{{ include "xdp-ingress.fullname" . }}-tcp
{{- else -}}
{{ .Values.controller.tcpServicesConfigMap }}
{{- end -}}
{{- end -}}

{{- define "xdp-ingress.udp" -}}
{{- if .Values.udp -}}
{{ .Values.controller.udp.configMapNamespace | default (include "xdp-ingress.namespace" .) }}/{{ include "xdp-ingress.fullname" . }}-udp
{{- else -}}
{{ .Values.controller.udpServicesConfigMap }}
{{- end -}}
{{- end -}}

{{- /* === addresses === */ -}}

{{- /* The Service whose addresses become the status of Ingresses, as NAMESPACE/NAME. */ -}}
{{- define "xdp-ingress.publishService" -}}
{{- $service := .Values.controller.service -}}
{{- with .Values.controller.publishService -}}
{{- if .enabled -}}
{{- if .pathOverride -}}
{{ .pathOverride }}
{{- else if and $service.enabled $service.external.enabled -}}
{{ include "xdp-ingress.namespace" $ }}/{{ include "xdp-ingress.fullname" $ }}
{{- else if and $service.enabled $service.internal.enabled -}}
{{ include "xdp-ingress.namespace" $ }}/{{ include "xdp-ingress.fullname" $ }}-internal
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "xdp-ingress.adminAddress" -}}
{{- $metrics := .Values.controller.metrics -}}
{{- if .Values.controller.adminAddress -}}
{{ .Values.controller.adminAddress }}
{{- else if $metrics.enabled -}}
{{ $metrics.address }}:{{ $metrics.port }}
{{- else -}}
127.0.0.1:9110
{{- end -}}
{{- end -}}

{{- /* === roles === */ -}}

{{- /* A role and where it is bound: in the whole cluster, or in the watched namespace and our own. */ -}}
{{- define "xdp-ingress.bind" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "xdp-ingress.fullname" $root) .role -}}
{{- $scope := include "xdp-ingress.scope" $root -}}
{{- if $scope }}
{{- $own := include "xdp-ingress.namespace" $root -}}
{{- $named := list }}
{{- range list (include "xdp-ingress.settings" $root) (include "xdp-ingress.tcp" $root) (include "xdp-ingress.udp" $root) }}
{{- with . }}{{ $named = append $named (regexFind "^[^/]+" .) }}{{ end }}
{{- end }}
{{- range concat (list $scope $own) $named | uniq }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels: {{- include "xdp-ingress.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects: {{- include "xdp-ingress.subjects" $root | nindent 2 }}
{{- end }}
{{- else }}
---
{{ include "xdp-ingress.bindCluster" . }}
{{- end }}
{{- end -}}

{{- define "xdp-ingress.bindCluster" -}}
{{- $name := printf "%s-%s" (include "xdp-ingress.fullname" .root) .role -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "xdp-ingress.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects: {{- include "xdp-ingress.subjects" .root | nindent 2 }}
{{- end -}}

{{- define "xdp-ingress.subjects" -}}
- kind: ServiceAccount
  name: {{ include "xdp-ingress.serviceAccount" . }}
  namespace: {{ include "xdp-ingress.namespace" . }}
{{- end -}}
