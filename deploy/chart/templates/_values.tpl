{{- /* Compares the names of values with files/known-values.txt and files/ingress-nginx-values.yaml. The schema checks
their types and contents. */ -}}

{{- /* A fault for each unknown value, with the nearest known one; a YAML list. */ -}}
{{- define "xdp-ingress.unknownValues" -}}
{{- $known := dict -}}
{{- range .Files.Lines "files/known-values.txt" -}}
{{- if . -}}
{{- $path := "" -}}
{{- range splitList "." . | initial -}}
{{- $path = printf "%s.%s" $path . | trimPrefix "." -}}
{{- if not (hasKey $known $path) }}{{ $_ := set $known $path "node" }}{{ end -}}
{{- end -}}
{{- $_ := set $known . "leaf" -}}
{{- end -}}
{{- end -}}
{{- $accepted := deepCopy $known -}}
{{- $upstream := .Files.Get "files/ingress-nginx-values.yaml" | fromYaml -}}
{{- range $path, $_ := merge (dict) $upstream.ineffective $upstream.refused }}{{ $_ := set $accepted $path "leaf" }}{{ end -}}
{{- $_ := set $accepted "controller.customTemplate" "leaf" -}}
{{- with include "xdp-ingress.unknownPaths" (dict "values" .Values "prefix" "" "accepted" $accepted) | fromYamlArray }}
{{- $candidates := dict }}
{{- range $path, $_ := $known }}
{{- $_ := set $candidates $path (include "xdp-ingress.pairs" $path | splitList " ") }}
{{- end }}
{{- range . }}
{{- $nearest := include "xdp-ingress.nearest" (dict "path" . "candidates" $candidates) }}
- {{ printf "unknown value `%s`; %s" . (empty $nearest | ternary "`helm show values` lists all" (printf "did you mean `%s`?" $nearest)) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The paths in `values` that are not accepted; a YAML list. */ -}}
{{- define "xdp-ingress.unknownPaths" -}}
{{- range $key, $value := .values }}
{{- $path := printf "%s%s" $.prefix $key }}
{{- $kind := get $.accepted $path }}
{{- if and (ne $kind "leaf") (kindIs "map" $value) $value }}
{{- include "xdp-ingress.unknownPaths" (dict "values" $value "prefix" (printf "%s." $path) "accepted" $.accepted) }}
{{- else if not $kind }}
- {{ $path | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The pairs of adjacent letters in a text, in lower case, separated by spaces. */ -}}
{{- define "xdp-ingress.pairs" -}}
{{- $text := lower . -}}
{{- range sub (len $text) 1 | int | until }}{{ if . }} {{ end }}{{ substr . (add . 2 | int) $text }}{{ end -}}
{{- end -}}

{{- /* The known path that shares most pairs of letters with `path`, by Dice's coefficient, where the same last part counts
as a tenth more; empty if none is near. */ -}}
{{- define "xdp-ingress.nearest" -}}
{{- $text := lower .path -}}
{{- $pairs := include "xdp-ingress.pairs" $text | splitList " " -}}
{{- $best := "" -}}
{{- $most := 0.5 -}}
{{- range $candidate, $others := .candidates -}}
{{- $other := lower $candidate -}}
{{- $common := 0 -}}
{{- range $pairs }}{{ if contains . $other }}{{ $common = add1 $common }}{{ end }}{{ end -}}
{{- range $others }}{{ if contains . $text }}{{ $common = add1 $common }}{{ end }}{{ end -}}
{{- $share := divf $common (add (len $pairs) (len $others)) -}}
{{- if eq (splitList "." $text | last) (splitList "." $other | last) }}{{ $share = addf $share 0.1 }}{{ end -}}
{{- if gt $share $most }}{{ $best = $candidate }}{{ $most = $share }}{{ end -}}
{{- end -}}
{{- $best -}}
{{- end -}}

{{- /* A sentence for each value of ingress-nginx that is set without an effect; a YAML list. */ -}}
{{- define "xdp-ingress.ineffectiveValues" -}}
{{- range $path, $reason := (.Files.Get "files/ingress-nginx-values.yaml" | fromYaml).ineffective }}
{{- $parent := $.Values }}
{{- $parts := splitList "." $path }}
{{- range initial $parts }}{{ $parent = get $parent . | default dict }}{{ end }}
{{- if and (kindIs "map" $parent) (hasKey $parent (last $parts)) }}
- {{ printf "`%s` has no effect: %s." $path $reason | quote }}
{{- end }}
{{- end }}
{{- end -}}
