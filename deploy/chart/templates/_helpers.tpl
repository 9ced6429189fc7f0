{{- define "xdp-ingress.fullname" -}}
{{- .Values.fullnameOverride | default "xdp-ingress" | trunc 63 | trimSuffix "-" -}}
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
{{ include "xdp-ingress.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "xdp-ingress.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* A role and where it is bound: in the whole cluster, or in the watched namespace and our own. */ -}}
{{- define "xdp-ingress.bind" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "xdp-ingress.fullname" $root) .role -}}
{{- if $root.Values.controller.watchNamespace }}
{{- range list $root.Values.controller.watchNamespace $root.Release.Namespace | uniq }}
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
  namespace: {{ .Release.Namespace }}
{{- end -}}
